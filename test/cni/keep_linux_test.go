package cni_test

import "testing"

// Other software may rely on forwarding by the time that tapir goes.
func TestCleanupKeepsSysctlsWhereAsked(t *testing.T) {
	for _, tt := range []struct {
		flags []string
		want  string
	}{{nil, "0"}, {[]string{"--keep-sysctls"}, "1"}} {
		n := newNode(t)
		n.in(func() { n.sysctl("net/ipv4/ip_forward", "0") })
		p := n.pod("c1", conf(nil))
		p.add()
		p.works("DEL", nil)
		n.ctl(append([]string{"cleanup", "--yes"}, tt.flags...)...)
		if got := n.readSysctl("net/ipv4/ip_forward"); got != tt.want {
			t.Errorf("cleanup %v: ip_forward: want %s, got %s", tt.flags, tt.want, got)
		}
		if exists(stateDir) {
			t.Errorf("cleanup %v: %s is left", tt.flags, stateDir)
		}
	}
}
