package cni_test

import (
	"os"
	"path/filepath"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

func podArgs(name string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name
}

func addrLines(r *types100.Result) (out []string) {
	for _, a := range resultAddrs(r) {
		out = append(out, a.String())
	}
	return out
}

// A pod that comes back under its name has its addresses again, also when the state was lost while it ran.
func TestStickyAddresses(t *testing.T) {
	n := newNode(t)
	sticky := object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"sticky": "pod", "reuseDelay": "1h"})}
	named := func(id, name string) *pod {
		p := n.pod(id, conf(sticky))
		p.args = podArgs(name)
		return p
	}
	web, other := named("c1", "web-0"), named("c2", "web-1")
	had, others := addrLines(web.add()), addrLines(other.add())
	back := func(what string, p *pod, want []string) {
		t.Helper()
		r := p.add()
		if diff := cmp.Diff(want, addrLines(r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		p.works("CHECK", object{"prevResult": r})
	}
	web.works("DEL", nil)
	// The control: without the key nothing is remembered, and the addresses rest.
	plain := named("c3", "web-0")
	plain.conf = conf(object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64")})
	if got := addrLines(plain.add()); cmp.Equal(got, had) {
		t.Errorf("without the key: got %v again", got)
	}
	plain.works("DEL", nil)
	web = named("c4", "web-0")
	back("after DEL", web, had)

	// A failed ADD of the pod: the next one has them all the same.
	web.works("DEL", nil)
	broken := named("c5", "web-0")
	broken.conf = broken.conf.with(object{"xdp": object{"mode": "generic", "uplink": "none0"}})
	broken.fails("ADD", codeConfig, nil)
	web = named("c6", "web-0")
	back("after a failed ADD", web, had)

	// GC does not know the pods' names; the leases do.
	web.works("GC", object{"cni.dev/valid-attachments": []object{}})
	web, other = named("c7", "web-0"), named("c8", "web-1")
	back("after GC", other, others)
	back("after GC", web, had)

	// The state is lost, and with it where the round stood: a pod of which nothing is known would get the lowest addresses.
	mustDo(t, os.Remove(filepath.Join(stateDir, "state.db")))
	web.args = ""
	web.works("DEL", nil)
	other.works("DEL", nil)
	back("after the state was rebuilt", named("c9", "web-1"), others)
	if cmp.Equal(others, had) {
		t.Error("both had the same: the test shows nothing")
	}
}
