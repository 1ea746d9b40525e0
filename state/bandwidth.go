package state

// Bandwidth is what an attachment may use, as the CNI conventions have it: rates in bits a second, bursts in bits. "Ingress" is
// what the guest receives. A rate of 0 is no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}
