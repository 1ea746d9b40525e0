package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// said fails where what was said lacks one of the texts.
func said(t testing.TB, out string, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("want %q, got %s", w, out)
		}
	}
}

// While a pod runs the programs stay, since the runtime needs them for its DEL; then nothing stays.
func TestUninstallKeepsTheProgramsForDEL(t *testing.T) {
	n := newNode(t, template, nil)
	stranger := filepath.Join(n.bin, "stranger")
	put(t, stranger, []byte("#!/bin/sh\n"), 0o755)
	d := n.start()
	d.ready()
	p := n.pod()
	mustDo(t, p.cni("ADD"))

	if out, err := n.uninstall(); err == nil || !strings.Contains(out, "end tapird first") {
		t.Errorf("want a refusal while tapird runs, got %v: %s", err, out)
	}
	d.ready()
	d.end(unix.SIGTERM)
	out, err := n.uninstall()
	said(t, out, err, "it refuses ADD and STATUS, and serves DEL", "kept the programs in "+n.bin+": 1 attachments are left, 0 of them dead")
	late := n.pod() // by what is there now, as containerd does it
	for _, verb := range []string{"ADD", "STATUS"} {
		if err := late.cni(verb); err == nil || !strings.Contains(err.Error(), "tapird uninstall took tapir off this node") {
			t.Errorf("want %s refused with the reason, got %v", verb, err)
		}
	}
	mustDo(t, p.cni("CHECK"))
	p.list = late.list
	mustDo(t, p.cni("DEL"))
	out, err = n.uninstall()
	n.absent(n.own())
	said(t, out, err, "removed "+filepath.Join(n.bin, "tapir"), "removed "+filepath.Join(n.tools, "tapirctl"))
	for _, path := range []string{filepath.Join(n.bin, "tapir"), filepath.Join(n.bin, "tapir-ipam"), filepath.Join(n.tools, "tapirctl"), state.DefaultDir, "/sys/fs/bpf/tapir"} {
		n.absent(path)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("somebody else's plugin: %v", err)
	}
	n.noTemp()
	out, err = n.uninstall() // again
	said(t, out, err)
}

// It waits for the last pod where it is told to.
func TestUninstallWaits(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	d.end(unix.SIGTERM)
	type answer struct {
		out string
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := n.uninstall("--wait", "1m")
		done <- answer{out, err}
	}()
	testnode.Eventually(t, patience, func() error {
		if text := string(read(t, n.own())); !strings.Contains(text, "uninstall") {
			return errors.New("it has not begun to wait")
		}
		return nil
	})
	p.list = read(t, n.own())
	mustDo(t, p.cni("DEL"))
	a := <-done
	said(t, a.out, a.err, "removed "+filepath.Join(n.bin, "tapir"))
}

// By force the programs go although a pod runs; its network stays, and its DEL works when they are there again.
func TestUninstallByForceLeavesRunningPodsTheirNetwork(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	d.end(unix.SIGTERM)
	out, err := n.uninstall("--force")
	said(t, out, err, "removed "+filepath.Join(n.bin, "tapir"))
	if err := p.cni("DEL"); err == nil {
		t.Error("want an error of DEL without the program, got none")
	}
	d = n.start()
	d.ready()
	mustDo(t, p.cni("CHECK"))
	mustDo(t, p.cni("DEL"))
}
