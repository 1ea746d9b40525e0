package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// root is deploy/.
const root = "../../deploy"

// overlays are all that a person applies.
var overlays = []string{
	"overlays/cluster", "overlays/chained", "overlays/runtimeclass", "overlays/kind",
	"uninstall/cluster", "uninstall/chained", "uninstall/runtimeclass",
}

// foreign are kinds of CRDs, which Kubernetes' types do not know.
var foreign = []string{"PodMonitor", "PrometheusRule"}

// build gives what "kubectl apply -k" of a folder below deploy/ would send, decoded strictly: a key that Kubernetes does not know is a fault.
func build(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	// The options of kubectl: files of other folders may not be read.
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatalf("kustomize build %s: %v", folder, err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, r := range resources.Resources() {
		if isForeign(r.GetKind()) {
			continue
		}
		data, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			t.Errorf("%s: %s %s: %v", folder, r.GetKind(), r.GetName(), err)
			continue
		}
		all = append(all, object)
	}
	return all
}

func isForeign(kind string) bool {
	for _, f := range foreign {
		if f == kind {
			return true
		}
	}
	return false
}

// of gives the objects of one type.
func of[T runtime.Object](all []runtime.Object) (some []T) {
	for _, o := range all {
		if one, ok := o.(T); ok {
			some = append(some, one)
		}
	}
	return some
}

// daemonSet is the overlay's only one.
func daemonSet(t *testing.T, all []runtime.Object) *appsv1.DaemonSet {
	t.Helper()
	sets := of[*appsv1.DaemonSet](all)
	if len(sets) != 1 {
		t.Fatalf("want one DaemonSet, got %d", len(sets))
	}
	return sets[0]
}

// withComponents is a folder of a user's own with an overlay and components, below deploy/ since kustomize takes none from absolute paths.
func withComponents(t *testing.T, overlay string, components ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(root, ".test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := "resources: [../" + overlay + "]\ncomponents: [../" + strings.Join(components, ", ../") + "]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEachOverlayBuilds(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			all := build(t, filepath.Join(root, overlay))
			set := daemonSet(t, all)
			maps := of[*corev1.ConfigMap](all)
			if len(maps) != 1 {
				t.Fatalf("want one ConfigMap, got %d", len(maps))
			}
			mounted := ""
			for _, v := range set.Spec.Template.Spec.Volumes {
				if v.ConfigMap != nil {
					mounted = v.ConfigMap.Name
				}
			}
			if mounted != maps[0].Name {
				t.Errorf("the DaemonSet mounts ConfigMap %q, want %q", mounted, maps[0].Name)
			}
			for _, o := range of[*rbacv1.ClusterRoleBinding](all) {
				if s := o.Subjects[0]; s.Namespace != set.Namespace || s.Name != set.Spec.Template.Spec.ServiceAccountName {
					t.Errorf("%s binds %s/%s, want the DaemonSet's %s/%s", o.Name, s.Namespace, s.Name, set.Namespace, set.Spec.Template.Spec.ServiceAccountName)
				}
			}
		})
	}
}

func TestADecoderThatIsStrictFindsAWrongKey(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	_, _, err := decoder.Decode([]byte("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: x}\nautomountToken: true\n"), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "automountToken") {
		t.Errorf("decode a ServiceAccount with an unknown key: want it named, got %v", err)
	}
}
