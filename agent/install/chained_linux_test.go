package install_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

const tapTemplate = `{"cniVersion": "1.0.0", "name": "tapir", "plugins": [{"type": "tapir", "when": "annotated", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}]}`

// others is the configuration of another network, as its owner writes it.
func others(mtu int, after string) []byte {
	return fmt.Appendf(nil, `{ "name": "others", "cniVersion": "1.0.0", "disableCheck": true,
		"plugins": [ {"type": "bridge", "mtu": %d, "big": 12345678901234567890, "ipam": {"type": "host-local"}}%s ] }
`, mtu, after)
}

// network puts a network of somebody else's on the node.
func (n *node) network() (path string) {
	n.t.Helper()
	for _, name := range []string{"bridge", "host-local", "istio"} {
		put(n.t, filepath.Join(n.bin, name), []byte("#!/bin/sh\n"), 0o755)
	}
	path = filepath.Join(n.conf, "05-others.conflist")
	put(n.t, path, others(1500, ""), 0o600)
	return path
}

// types are the plugins of a list with the MTU of the first, or why it cannot be read.
func types(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var list struct {
		Plugins []struct {
			Type string
			MTU  int
		}
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err.Error()
	}
	said := fmt.Sprint(list.Plugins[0].MTU)
	for _, p := range list.Plugins {
		said += " " + p.Type
	}
	return said
}

func wantTypes(t testing.TB, path, want string) {
	t.Helper()
	testnode.Eventually(t, patience, func() error {
		if got := types(path); got != want {
			return fmt.Errorf("%s: want %q, got %q", path, want, got)
		}
		return nil
	})
}

func TestChainedExtendsTheConfigurationThatIsThereAndPutsItBack(t *testing.T) {
	n := newNode(t, tapTemplate, object{"mode": "chained"})
	d := n.start()
	d.notReady("want a configuration to extend in " + n.conf + ", got none")
	path := n.network()
	wantTypes(t, path, "1500 bridge tapir")
	d.ready()
	kept := path + ".tapir-original"
	n.same(kept, others(1500, ""))
	text := string(read(t, path))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || !strings.Contains(text, "12345678901234567890") || !strings.Contains(text, `"disableCheck": true`) {
		t.Errorf("want the owner's mode and keys, got %v, %v, %s", info.Mode(), err, text)
	}
	n.absent(n.own())

	// Its owner writes it anew.
	put(t, path, others(1400, ""), 0o600)
	wantTypes(t, path, "1400 bridge tapir")
	n.same(kept, others(1400, ""))
	// Another one puts its own plugin at the end of what is there: both stay.
	put(t, path, []byte(strings.Replace(string(read(t, path)), `"plugins": [`, `"plugins": [{"type": "istio"},`, 1)), 0o600)
	wantTypes(t, kept, "0 istio bridge")
	wantTypes(t, path, "0 istio bridge tapir")
	d.ready()
	// The kept original is removed.
	mustDo(t, os.Remove(kept))
	wantTypes(t, kept, "0 istio bridge")
	// tapir is taken out.
	put(t, path, others(1300, ""), 0o600)
	wantTypes(t, path, "1300 bridge tapir")
	d.ready()
	d.end(15)

	if out, err := n.uninstall(); err != nil || !strings.Contains(out, "put back "+path) {
		t.Errorf("%v: %s", err, out)
	}
	n.same(path, others(1300, ""))
	n.absent(kept)
	n.absent(filepath.Join(n.bin, "tapir"))
	n.noTemp()
}

// Written by its owner again and again while it is extended: in the end it is the owner's last with tapir, and so is what is kept.
func TestChainedLosesNothingThatTheOwnerWrites(t *testing.T) {
	n := newNode(t, tapTemplate, object{"mode": "chained"})
	path := n.network()
	d := n.start()
	d.ready()
	for mtu := 1000; mtu < 1200; mtu++ {
		put(t, path, others(mtu, ""), 0o600)
		if mtu%50 == 0 {
			wantTypes(t, path, fmt.Sprint(mtu, " bridge tapir"))
		}
	}
	wantTypes(t, path, "1199 bridge tapir")
	n.same(path+".tapir-original", others(1199, ""))
	d.end(15)
	if out, err := n.uninstall(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	n.same(path, others(1199, ""))
}

// What the runtime takes first is extended; what was extended before is put back.
func TestChainedFollowsTheFirstConfiguration(t *testing.T) {
	n := newNode(t, tapTemplate, object{"mode": "chained"})
	path := n.network()
	d := n.start()
	d.ready()
	first := filepath.Join(n.conf, "01-first.conflist")
	put(t, first, others(1234, ""), 0o600)
	wantTypes(t, first, "1234 bridge tapir")
	n.same(path, others(1500, ""))
	mustDo(t, os.Remove(first)) // its network goes
	wantTypes(t, path, "1500 bridge tapir")
	testnode.Eventually(t, patience, func() error {
		if _, err := os.Stat(first + ".tapir-original"); err == nil {
			return fmt.Errorf("an original is left of what is gone")
		}
		return nil
	})
	d.ready()

	// A template that is gone for a moment takes nothing back.
	mustDo(t, os.Remove(n.template()))
	d.notReady("no such file")
	wantTypes(t, path, "1500 bridge tapir")
	n.writeTemplate(tapTemplate)
	d.ready()

	// By another configuration of tapird only what is named is extended.
	single := filepath.Join(n.conf, "00-single.conf")
	put(t, single, []byte(`{"name": "single", "cniVersion": "1.0.0", "type": "bridge"}`), 0o600)
	d.notReady("want a list, a file that ends with .conflist")
	n.install["extend"] = filepath.Base(path)
	n.config()
	d.hangup()
	d.ready()
	wantTypes(t, path, "1500 bridge tapir")
	n.install["mode"], n.install["extend"] = "cluster", ""
	n.writeTemplate(template)
	n.config()
	d.hangup()
	n.same(path, others(1500, ""))
	wantTypes(t, n.own(), "1400 tapir")
	d.ready()
}

// A tapir that an operator has put there is left alone.
func TestChainedRefusesAnothersTapir(t *testing.T) {
	n := newNode(t, tapTemplate, object{"mode": "chained"})
	path := n.network()
	text := others(1500, `, {"type": "tapir", "queues": 2}`)
	put(t, path, text, 0o600)
	d := n.start()
	d.notReady("it calls tapir already")
	n.same(path, text)
	d.end(15)
	if out, err := n.uninstall(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	n.same(path, text)
}

func TestRuntimeClassHasAFolderOfItsOwn(t *testing.T) {
	n := newNode(t, tapTemplate, object{"mode": "runtimeclass"})
	path := n.network()
	d := n.start()
	d.ready()
	own := filepath.Join(n.d, "10-tapir.conflist")
	wantTypes(t, own, "1500 bridge tapir")
	n.same(path, others(1500, ""))
	put(t, path, others(1400, ""), 0o600)
	wantTypes(t, own, "1400 bridge tapir")
	mustDo(t, os.RemoveAll(n.d))
	wantTypes(t, own, "1400 bridge tapir")

	// A template with addresses of its own stands alone.
	n.writeTemplate(template)
	wantTypes(t, own, "1400 tapir")
	d.ready()
	d.end(15)
	if out, err := n.uninstall(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	n.absent(own)
	if _, err := os.Stat(n.d); err != nil {
		t.Errorf("the folder of tapir's own: want it kept, since containerd 2.4 ends itself without, got %v", err)
	}
	n.same(path, others(1400, ""))
}
