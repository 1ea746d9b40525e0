package plugin

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/state"
)

var update = flag.Bool("update", false, "write the generated files anew")

const configDoc = "../docs/config.md"

// docSource is a Go file whose structs are parts of the configuration.
var docSources = []string{"config.go", "../ipam/config.go"}

// section is one struct of the configuration and where it stands.
type section struct{ title, strct string }

var sections = []section{
	{"The configuration", "Config"},
	{"`ipam`", "ipam.Config"},
	{"`ipam.ranges[][]`", "ipam.Range"},
	{"`ipam.routes[]`", "ipam.Route"},
	{"`dns`", "DNSConfig"},
	{"`guest`", "GuestConfig"},
	{"`xdp`", "XDPConfig"},
	{"`runtimeConfig`", "RuntimeConfig"},
	{"`runtimeConfig.dns`", "RuntimeDNS"},
	{"`runtimeConfig.bandwidth`", "BandwidthConfig"},
}

// docField is one key as the documentation shows it.
type docField struct{ key, typ, def, text string }

func TestConfigDocIsFresh(t *testing.T) {
	structs := map[string][]docField{}
	for _, file := range docSources {
		parseStructs(t, file, structs)
	}
	want := renderConfigDoc(t, structs)
	if *update {
		if err := os.WriteFile(configDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(configDoc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale; run \"make generate\" (-want +got):\n%s", configDoc, diff)
	}
}

// The documented defaults are what an empty configuration means.
func TestDocumentedDefaultsHold(t *testing.T) {
	raw, err := json.Marshal(defaults())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	typ := reflect.TypeFor[Config]()
	checked := 0
	for i := range typ.NumField() {
		f := typ.Field(i)
		def, ok := f.Tag.Lookup("default")
		switch f.Type.Kind() {
		case reflect.Int, reflect.Bool, reflect.String:
		default:
			continue // null until something is given
		}
		if !ok {
			continue
		}
		key := f.Tag.Get("json")
		if have := strings.Trim(string(got[key]), `"`); have != strings.Trim(def, `"`) {
			t.Errorf("%s: documented default %s, got %s", key, def, have)
		}
		checked++
	}
	if checked < 15 {
		t.Errorf("checked %d defaults, want all of them", checked)
	}
}

func parseStructs(t *testing.T, file string, into map[string][]docField) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	prefix := ""
	if f.Name.Name != "plugin" {
		prefix = f.Name.Name + "."
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if st, ok := spec.Type.(*ast.StructType); ok {
			into[prefix+spec.Name.Name] = fieldsOf(t, st)
		}
		return false
	})
}

func fieldsOf(t *testing.T, st *ast.StructType) []docField {
	var out []docField
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		key := tag.Get("json")
		if key == "" {
			continue
		}
		text := f.Doc.Text() + f.Comment.Text()
		if strings.TrimSpace(text) == "" {
			t.Errorf("key %q has no comment", key)
		}
		out = append(out, docField{key, typeName(f.Type), tag.Get("default"), strings.Join(strings.Fields(text), " ")})
	}
	return out
}

// typeName is a Go type in the words of JSON.
func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.ArrayType:
		return "list of " + typeName(x.Elt)
	case *ast.MapType:
		return "object"
	case *ast.SelectorExpr:
		return "object"
	case *ast.Ident:
		switch x.Name {
		case "string":
			return "string"
		case "int", "uint64":
			return "number"
		case "bool":
			return "boolean"
		}
		return "object"
	}
	return fmt.Sprintf("%T", e)
}

const guestDoc = `
## A guest with an identity of its own

Clones of one snapshot have one MAC and one address, inside. With ` + "`guest`" + ` each has its pod's addresses outside, which IPAM gives and everybody else knows: routes, Services,
policies, leases, limits, tapirctl and the result. At the TAP one is put in the place of the other, in both families, without state ([design/0010](design/0010-fixed-guest-identity.md)
says what of a packet, and what is refused). It comes whole from the first of: CNI_ARGS TAP_GUEST_…, the annotation tapir.dev/guest, the key. An ` + "`ip`" + ` takes the place of the one
IPv4 address that IPAM gives, an ` + "`ip6`" + ` that of the one IPv6 address; a family that is left out keeps the pod's. The guest's gateway is answered for at the TAP, with the MAC that it has on
every node; it is a way out and no host: it does not answer pings. What the guest is told is its inside: ` + "`tapirctl guest-config`" + `, the copy of the address and the routes in result layout firecracker,
DHCP. With ` + "`\"when\": \"annotated\"`" + ` the key is for pods with a TAP. Without a MAC in it the guest needs the one that tapir derives, or ` + "`spoofCheck`" + ` drops what it sends.
`

const stickyDoc = `
## Sticky addresses

With ` + "`ipam.sticky: \"pod\"`" + ` the names in CNI_ARGS, K8S_POD_NAMESPACE and K8S_POD_NAME, tell a pod that comes back, at the same interface of the same network. It gets the addresses that
it had, in both families, as long as they are free or rest since it had them; a rest after another pod's use it waits for like anybody. Nothing is kept free for it: where an
address is gone it gets another one. Addresses that are asked for by name go first. What is remembered are the last %d releases on the node, for %v hours; it is in the state, so
that restarts of tapird do not matter and a reboot, or "tapirctl cleanup" of a node without pods, forgets it. Where the state was lost and rebuilt from the kernel, a pod that runs
meanwhile is remembered at its DEL, whose CNI_ARGS name it. A pod without the names has no memory.
`

// choiceDocs say what each annotation's value is and what it does.
var choiceDocs = map[string]string{
	choiceTAP:     `"true": a TAP, where "when" is "annotated". Needs no entry in the list.`,
	choiceQueues:  "Queue pairs of the TAP, as the key `queues`.",
	choiceMAC:     "MAC of the guest, as the key `mac`.",
	choiceIP:      "One address, or two with a comma between: one of each set of `ipam.ranges` at most. Only with tapir-ipam, or after another plugin, which must have given them.",
	choiceProfile: "Profile of the agent's tuner ([tuner.md](tuner.md)), whose own list says which ones pods may have.",
	choiceGuest:   "The key `guest` as JSON, whole.",
	choiceXDP:     "`off`: no part in the shortcut; else as the key `xdp.mode`.",
}

func renderChoices(t *testing.T, b *strings.Builder) {
	b.WriteString(`
## Annotations of pods

A pod chooses by annotations that the runtime passes by the capability ` + "`io.kubernetes.cri.pod-annotations`" + `, and only what ` + "`podAnnotations`" + ` names. An annotation with the prefix
` + "`" + podPrefix + "`" + ` that is not in the list, not known, malformed, or without effect on the pod fails the ADD with code 7, all of them at once; kubelet shows the text as an event of
the pod. DEL and GC do not read annotations. Limits come by the standard ` + "`kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`" + `, which the runtime turns into the
capability ` + "`bandwidth`" + `.

| annotation | in the list | value |
| --- | --- | --- |
`)
	for _, name := range choosable {
		if choiceDocs[name] == "" {
			t.Errorf("annotation %q is not documented", name)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", podPrefix+name, name, choiceDocs[name])
	}
}

func renderConfigDoc(t *testing.T, structs map[string][]docField) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from plugin/config.go and ipam/config.go by "make generate"; do not edit. -->
# Configuration

An entry of the "plugins" list of a conflist. A whole one is in [deploy/conflists](../deploy/conflists). At ADD every key is
checked: unknown keys and wrong values are refused with code 7, all at once, each with its JSON path. DEL and GC read only
` + "`name`, `stateDir`, `danDir` and `ipam`" + `, so that a newer configuration can always be removed by an older tapir.

CNI_ARGS: ` + "`" + strings.Join(argNames, "`, `") + "`" + `.

What is said in several places is taken from the first of these that says it: ` + "`runtimeConfig`, `args.cni`, CNI_ARGS, the pod's annotations, the configuration" + `.
Addresses of the first three are asked for together.
`)
	for _, s := range sections {
		fields, ok := structs[s.strct]
		if !ok {
			t.Fatalf("no struct %s", s.strct)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n", s.title)
		for _, f := range fields {
			def := f.def
			if def != "" {
				def = "`" + def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.key, f.typ, def, strings.ReplaceAll(f.text, "|", `\|`))
		}
	}
	renderChoices(t, &b)
	b.WriteString(guestDoc)
	fmt.Fprintf(&b, stickyDoc, state.MaxRemembered, state.RememberFor.Hours())
	return b.String()
}
