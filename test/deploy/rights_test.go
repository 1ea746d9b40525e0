package deploy

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/agent"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// right is one thing that tapird may ask of the API server, and why.
type right struct{ verb, resource, why string }

var clusterRights = []right{
	{"list", "nodes", "ranges and addresses of all nodes, at the start"},
	{"watch", "nodes", "and what becomes of them"},
	{"list", "pods", "labels of the node's pods, while policies are followed"},
	{"watch", "pods", "likewise"},
	{"get", "pods", "the UID of the pod that an event is of"},
	{"list", "networking.k8s.io/networkpolicies", "whom policies select, while an attachment takes part in the shortcut"},
	{"watch", "networking.k8s.io/networkpolicies", "likewise"},
	{"create", "events", "a node that no route leads to, a choice of a pod that is refused"},
	{"patch", "events", "the same again: the recorder counts instead of making a new one"},
}

var nodeConditionRights = []right{
	{"get", "nodes", "taints and conditions, which the informer does not keep"},
	{"patch", "nodes", "taking the taint away"},
	{"patch", "nodes/status", "the condition NetworkUnavailable"},
}

func rightsOf(roles []*rbacv1.ClusterRole) (all []string) {
	for _, role := range roles {
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if group != "" {
						resource = group + "/" + resource
					}
					for _, verb := range rule.Verbs {
						all = append(all, verb+" "+resource)
					}
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

func want(lists ...[]right) (all []string) {
	for _, r := range slices.Concat(lists...) {
		all = append(all, r.verb+" "+r.resource)
	}
	slices.Sort(all)
	return all
}

func TestRightsAreThoseThatAreNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		folder string
		want   []string
	}{
		"cluster":      {filepath.Join(root, "overlays/cluster"), want(clusterRights)},
		"chained":      {filepath.Join(root, "overlays/chained"), nil},
		"runtimeclass": {filepath.Join(root, "overlays/runtimeclass"), nil},
		"with the node's condition": {
			withComponents(t, "overlays/cluster", "components/node-condition"), want(clusterRights, nodeConditionRights),
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := build(t, c.folder)
			if diff := cmp.Diff(c.want, rightsOf(of[*rbacv1.ClusterRole](all))); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
			if got := len(of[*rbacv1.Role](all)); got != 0 {
				t.Errorf("want no Role beside, got %d", got)
			}
			accounts := of[*corev1.ServiceAccount](all)
			if len(accounts) != 1 || accounts[0].AutomountServiceAccountToken == nil {
				t.Fatalf("want one ServiceAccount that says whether its token is mounted, got %v", accounts)
			}
			if got := *accounts[0].AutomountServiceAccountToken; got != (c.want != nil) {
				t.Errorf("the token is mounted: %t, but rights are %q", got, c.want)
			}
		})
	}
}

func TestNoContainerIsPrivileged(t *testing.T) {
	var keeps []string
	for _, c := range agent.Capabilities {
		keeps = append(keeps, c.Name)
	}
	slices.Sort(keeps)
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			spec := daemonSet(t, build(t, filepath.Join(root, overlay))).Spec.Template.Spec
			for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
				s := c.SecurityContext
				if s.Privileged != nil && *s.Privileged {
					t.Errorf("%s: it is privileged", c.Name)
				}
				if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: its root can be written", c.Name)
				}
				var got []string
				for _, a := range s.Capabilities.Add {
					got = append(got, string(a))
				}
				slices.Sort(got)
				if diff := cmp.Diff(keeps, got); diff != "" {
					t.Errorf("%s: capabilities, beside those that tapird keeps (-want +got):\n%s", c.Name, diff)
				}
				if diff := cmp.Diff([]corev1.Capability{"ALL"}, s.Capabilities.Drop); diff != "" {
					t.Errorf("%s: dropped capabilities (-want +got):\n%s", c.Name, diff)
				}
				for _, m := range c.VolumeMounts {
					if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
						t.Errorf("%s: %s: Bidirectional wants a privileged container", c.Name, m.MountPath)
					}
				}
			}
		})
	}
}

// Whatever the node lets in, its network's agent does: it has to be there before everything else, and nothing may push it away.
func TestTheAgentRunsOnEachNodeAndFirst(t *testing.T) {
	for _, overlay := range overlays {
		spec := daemonSet(t, build(t, filepath.Join(root, overlay))).Spec.Template.Spec
		if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, spec.Tolerations); diff != "" {
			t.Errorf("%s: tolerations (-want +got):\n%s", overlay, diff)
		}
		if spec.PriorityClassName != "system-node-critical" || !spec.HostNetwork {
			t.Errorf("%s: want priority system-node-critical and the node's network, got %q, %t", overlay, spec.PriorityClassName, spec.HostNetwork)
		}
	}
}

func TestMonitoringHasProbesWhereTheMetricsAre(t *testing.T) {
	c := daemonSet(t, build(t, withComponents(t, "overlays/cluster", "monitoring"))).Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--metrics-bind-address=[$(HOST_IP)]:") }) {
		t.Errorf("args: want --metrics-bind-address at HOST_IP, got %q", c.Args)
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == "HOST_IP" && e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "status.hostIP"
	}) {
		t.Errorf("env: want HOST_IP of status.hostIP, got %v", c.Env)
	}
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if p.HTTPGet.Host != "" {
			t.Errorf("%s probe: it asks %s, where nothing listens", name, p.HTTPGet.Host)
		}
	}
}
