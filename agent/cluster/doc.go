// Package cluster is what tapird does for a node of a Kubernetes cluster: it tells which ranges are the node's, keeps routes to the other
// nodes and the masquerade of what leaves the cluster, says that the node's network is there, and flags pods that a NetworkPolicy selects off the
// shortcut. It is the only package that speaks to the API server; design 0009.
package cluster
