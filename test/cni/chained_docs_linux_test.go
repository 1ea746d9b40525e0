package cni_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

var jsonBlock = regexp.MustCompile("(?s)```json\n(.*?)```")

// Each conflist of docs/chaining.md is one that tapir takes; those of plugins that are here connect a guest.
func TestListsOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/chaining.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := jsonBlock.FindAllSubmatch(text, -1)
	if len(blocks) < 6 {
		t.Fatalf("docs/chaining.md has %d conflists, want 6", len(blocks))
	}
	needTools(t, "nft")
	coverVarLib(t)
	for _, block := range blocks {
		var list struct {
			CNIVersion, Name string
			Plugins          []object
		}
		if err := json.Unmarshal(block[1], &list); err != nil {
			t.Fatalf("%v: %s", err, block[1])
		}
		first := list.Plugins[0]["type"].(string)
		t.Run(first, func(t *testing.T) {
			n := newNode(t)
			if !exists(refplugins(t) + "/" + first) {
				for _, c := range list.Plugins {
					if c["type"] == "tapir" {
						n.pod("c1", c.with(object{"name": list.Name, "cniVersion": "1.1.0"})).works("STATUS", nil)
					}
				}
				return
			}
			first := list.Plugins[0]
			if first["master"] != nil {
				first["master"] = "up0"
			}
			w := n.network(list.Name, list.Plugins...)
			p := n.pod("c1", nil)
			rt := runtimeConf(p, object{"io.kubernetes.cri.pod-annotations": map[string]string{"tapir.dev/tap": "true"}})
			rt.Args = [][2]string{{"IgnoreUnknown", "1"}}
			r := w.add(rt)
			if !strings.HasPrefix(r.Interfaces[len(r.Interfaces)-1].Name, "tap-") {
				t.Fatalf("the result has no TAP: %v", r)
			}
			if first["master"] != nil {
				n.inWorld(func() { addAddr(t, "up0", netip.MustParsePrefix("192.168.7.1/24")) })
			}
			g := boot(p, r)
			g.wantPing(g.gw[true])
			w.check(rt)
			w.del(rt)
			testnode.In(t, p.netns, func() {
				if links := allLinks(t); len(links) != 1 {
					t.Errorf("the sandbox has %d links after DEL, want lo alone", len(links))
				}
			})
			n.tool("nft", "flush", "ruleset")
		})
	}
}
