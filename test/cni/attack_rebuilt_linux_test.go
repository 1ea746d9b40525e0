package cni_test

import (
	"encoding/json"
	"os"
	"testing"
)

// A record that was rebuilt from the kernel does not know everything; what it knows CHECK compares, and a healthy pod passes.
func TestCheckAfterLostState(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2})
	guest, plain := n.pod("guest", c), n.pod("plain", c.with(object{"when": "annotated"}))
	prev := map[*pod]object{}
	for _, p := range []*pod{guest, plain} {
		out := p.call("ADD", nil)
		if out.code != 0 {
			t.Fatalf("ADD: %s", out)
		}
		prev[p] = object{"prevResult": json.RawMessage(out.stdout)}
	}
	if err := os.RemoveAll(stateDir); err != nil {
		t.Fatal(err)
	}
	n.pod("newer", c).add()
	guest.works("CHECK", prev[guest])
	plain.works("CHECK", prev[plain])
	wantText(t, plain.fails("CHECK", codeDiffers, prev[guest]), "prevResult: 10.9.0.2/24 is not this attachment's")
	deleteLink(t, guest.netns, "tap-eth0")
	wantText(t, guest.fails("CHECK", codeDiffers, prev[guest]), "tap-eth0")
	deleteLink(t, plain.netns, "eth0")
	wantText(t, plain.fails("CHECK", codeDiffers, prev[plain]), "tpr")
	guest.works("DEL", nil)
	plain.works("DEL", nil)
}
