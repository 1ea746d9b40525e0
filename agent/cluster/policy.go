package cluster

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podName is a pod of the cluster.
type podName struct{ namespace, name string }

// policies are the NetworkPolicies of the cluster by namespace and name, of which only whom they select counts: which pods a
// policy lets in or out is the work of the project that enforces it, on the default path.
type policies map[podName]labels.Selector

// put takes a policy. One whose selector is wrong selects everything of its namespace: the API server let it pass, and to keep pods off the
// shortcut is the safe mistake.
func (p policies) put(np *networkingv1.NetworkPolicy) (changed bool) {
	s, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
	if err != nil {
		s = labels.Everything()
	}
	key := podName{np.Namespace, np.Name}
	was, had := p[key]
	p[key] = s
	return !had || was.String() != s.String()
}

// selects tells whether any policy selects the pod.
func (p policies) selects(pod podName, has labels.Set) bool {
	for key, s := range p {
		if key.namespace == pod.namespace && s.Matches(has) {
			return true
		}
	}
	return false
}
