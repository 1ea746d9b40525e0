package cni_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestStatusOfUsableNode(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	before := n.snapshot()
	p.works("STATUS", nil)
	p.works("STATUS", object{"redirect": "tcx"})
	wantSame(t, "after STATUS", before, n.snapshot())
	if exists(stateDir) || exists(pinDir) {
		t.Errorf("STATUS left %s (%t) or %s (%t)", stateDir, exists(stateDir), pinDir, exists(pinDir))
	}
	p.add()
	p.works("STATUS", nil)
	wantText(t, p.fails("STATUS", codeConfig, object{"qeues": 1}), `did you mean "queues"`)
	noTemp(t)
}

// brokenNode runs STATUS and ADD behind a mount namespace in which a shell command has broken something.
func (p *pod) brokenNode(verb, breakIt string) answer {
	p.n.t.Helper()
	script := breakIt + ` && exec "$1"`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", filepath.Join(os.Getenv(binDirEnv), "tapir"))
	cmd.Env = append(p.env(verb), "PATH="+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(string(marshal(p.n.t, p.conf)))
	return p.n.runCmd(cmd)
}

func TestStatusOfUnusableNode(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		name    string
		breakIt string
		over    object
		want    []string
	}{
		{"no tun device", "mkdir /run/empty && mount --bind /run/empty /dev/net", nil, []string{"/dev/net/tun", "no such file", "tun"}},
		{"tun device that is none", "mount --bind /dev/null /dev/net/tun", nil, []string{"/dev/net/tun"}},
		{"no bpffs and none to be mounted", "umount /sys/fs/bpf && mount -t tmpfs -o ro none /sys/fs", nil, []string{"/sys/fs/bpf"}},
		{"state directory read-only", "mkdir -p /run/ro && mount -t tmpfs -o ro none /run/ro", object{"stateDir": "/run/ro/tapir"}, []string{"/run/ro", "read-only"}},
		{"state directory below a file", "true", object{"stateDir": "/etc/hostname/tapir"}, []string{"/etc/hostname"}},
		{"state directory is a file", "true", object{"stateDir": "/etc/hostname"}, []string{"/etc/hostname", "directory"}},
	} {
		p := n.pod("c1", conf(tt.over))
		before := n.snapshot(p.netns)
		text := wantCode(t, p.brokenNode("STATUS", tt.breakIt), codeUnavailable)
		t.Log(tt.name + ": " + text)
		wantText(t, text, append(tt.want, "this node can serve no ADD")...)
		// The control: STATUS must not refuse what would work.
		_ = os.Remove("/run/empty")
		if out := p.brokenNode("ADD", tt.breakIt); out.code == 0 {
			t.Errorf("%s: STATUS failed and ADD works", tt.name)
		}
		wantSame(t, tt.name, before, n.snapshot(p.netns))
		_ = os.Remove("/run/empty")
		_ = os.Remove("/run/ro")
	}
}

// What is wrong in one moment, or for one pod, must not make the node NotReady.
func TestStatusIgnoresWhatPasses(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"ipam": ranges("10.9.0.0/30")}))
	p.add()
	q := n.pod("c2", p.conf)
	q.fails("ADD", codeExhausted, nil)
	q.works("STATUS", nil)
	if err := os.WriteFile(filepath.Join(stateDir, "state.db"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	q.works("STATUS", nil)
	q.conf = conf(nil)
	q.add() // the state is rebuilt
	if lease := strings.Join(n.stateLines(), "\n"); !strings.Contains(lease, "lease pods/c1/eth0 [{10.9.0.2/") {
		t.Errorf("the first pod's lease is lost: %s", lease)
	}
	p.works("DEL", nil)
	q.works("DEL", nil)
}
