package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// danConf is a configuration for Kata with DAN files in that folder.
func danConf(dir string, over object) object {
	return hostConf(object{"vmm": "kata", "danDir": dir}).with(over)
}

// danDir is a folder that is not there yet.
func newDANDir(t testing.TB) string { return filepath.Join(t.TempDir(), "kata", "dans") }

// danLines are what is in the folder, a line for each device.
func danLines(dir string) (lines []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		lines = append(lines, "file "+e.Name())
		var file struct {
			Devices []struct {
				Name   string
				Device struct {
					TapName string `json:"tap_name"`
				}
			}
		}
		data, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		if err := json.Unmarshal(data, &file); err != nil {
			lines = append(lines, "unreadable "+e.Name())
		}
		for _, d := range file.Devices {
			lines = append(lines, "device "+e.Name()+" "+d.Name+" "+d.Device.TapName)
		}
	}
	slices.Sort(lines)
	return lines
}

func wantMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	st, err := os.Stat(path)
	mustDo(t, err)
	if st.Mode().Perm() != want {
		t.Errorf("%s has mode %o, want %o", path, st.Mode().Perm(), want)
	}
}

// Kata finds all that it needs in the file, and a guest that knows nothing else has its network at once.
func TestKataGuestByDANFile(t *testing.T) {
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprint(queues, " queues"), func(t *testing.T) {
			n := newNode(t)
			n.routePodsInWorld()
			dir := newDANDir(t)
			p, other := n.pod("sandbox-1", danConf(dir, object{"queues": queues})), n.pod("other", conf(nil))
			p.add()
			g2 := boot(other, other.add())
			l := n.list("sandbox-1")
			path := filepath.Join(dir, "sandbox-1.json")
			if l.DAN != path {
				t.Errorf("the record has DAN file %q, want %q", l.DAN, path)
			}
			wantMode(t, path, 0o600)
			wantMode(t, dir, 0o700)
			netns, guests := n.readDAN(path)
			want := danGuest{
				name: "eth0", tap: l.TAP.Name, mac: guests[0].mac, pairs: uint(queues), queueSize: 256, mtu: uplinkMTU,
				addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd00:9::2/64")},
				routes:    []string{"default via 10.9.0.1", "default via fd00:9::1"}, neighbours: []string{"10.9.0.1 " + gatewayMAC.String(), "fd00:9::1 " + gatewayMAC.String()},
			}
			if netns != p.netns || len(guests) != 1 || guests[0].mac.String() != l.GuestMAC {
				t.Errorf("netns %q and %d guests, the first %+v", netns, len(guests), guests[0])
			}
			if diff := cmp.Diff(want, guests[0], cmp.AllowUnexported(danGuest{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("what Kata reads (-want +got):\n%s", diff)
			}
			wrong := guests[0]
			wrong.pairs = map[int]uint{1: 2, 4: 1}[queues]
			if _, err := openQueue(t, n.netns, l.TAP.Name, wrong.flags()); !errors.Is(err, unix.EINVAL) {
				t.Errorf("a VMM that took another number of pairs opens the TAP: %v, want EINVAL", err)
			}
			g := n.bootDAN(guests[0])
			g.wantPing(nodeIP4, nodeIP6, worldIP4, worldIP6, g2.ip[true], g2.ip[false])
			g2.wantPing(g.ip[true], g.ip[false])
			wantText(t, string(n.ctl("guest-config", "sandbox-1").stdout), path)
			if got := string(n.ctl("guest-config", "sandbox-1", "--format", "kata").stdout); got != path+"\n" {
				t.Errorf("guest-config --format kata: %q", got)
			}
			wantEmptySandbox(t, p)
			p.works("CHECK", nil)
			p.works("STATUS", nil)
			p.works("DEL", nil)
			if lines := danLines(dir); len(lines) > 0 {
				t.Errorf("after DEL: %q", lines)
			}
		})
	}
}

// A gateway beside the prefix gets a route of its own, before those that lead by it.
func TestDANFileOfHostRoute(t *testing.T) {
	n := newNode(t)
	dir := newDANDir(t)
	p := n.pod("c1", danConf(dir, object{"ipam": ranges("10.9.0.7/32", "fd00:9::7/128")}))
	p.add()
	_, guests := n.readDAN(filepath.Join(dir, "c1.json"))
	want := []string{"169.254.1.1/32 via ", "fe80::1/128 via ", "default via 169.254.1.1", "default via fe80::1"}
	if diff := cmp.Diff(want, guests[0].routes); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	n.bootDAN(guests[0]).wantPing(nodeIP4, nodeIP6)
}

// Two interfaces of a sandbox share its file, whoever comes and goes first; a third writer's device stays.
func TestInterfacesOfSandboxShareDANFile(t *testing.T) {
	n := newNode(t)
	dir := newDANDir(t)
	a := n.pod("c1", danConf(dir, nil))
	b := *a
	b.ifName, b.conf = "net1", danConf(dir, object{"name": "others", "tapName": "vmtap1", "ipam": ranges("10.12.0.0/24", "fd00:12::/64")})
	a.add()
	b.add()
	path := filepath.Join(dir, "c1.json")
	_, guests := n.readDAN(path)
	var names []string
	for _, g := range guests {
		names = append(names, g.name)
		n.bootDAN(g).wantPing(nodeIP4, nodeIP6)
	}
	if !slices.Equal(names, []string{"eth0", "net1"}) {
		t.Errorf("devices %q, want both", names)
	}

	// One of the same name in the guest cannot be.
	c := b
	c.ifName, c.conf = "eth0", b.conf.with(object{"tapName": ""})
	before, linesBefore := n.snapshot(), danLines(dir)
	wantText(t, c.fails("ADD", codeBusy, nil), path, `"eth0"`)
	wantSame(t, "after the refused ADD", before, n.snapshot())
	if diff := cmp.Diff(linesBefore, danLines(dir)); diff != "" {
		t.Errorf("DAN folder after the refused ADD (-before +after):\n%s", diff)
	}
	c.works("DEL", nil) // of what never was: the other network's device of that name stays
	if diff := cmp.Diff(linesBefore, danLines(dir)); diff != "" {
		t.Errorf("DAN folder after DEL of what never was (-before +after):\n%s", diff)
	}

	const foreign = `{"name": "net7", "device": {"type": "vhost-user", "path": "/x"}, "network_info": {"interface": {"ip_addresses": []}}}`
	editDAN(t, path, func(f map[string]any) {
		var d any
		mustDo(t, json.Unmarshal([]byte(foreign), &d))
		f["devices"] = append(f["devices"].([]any), d)
	})
	a.works("CHECK", nil)
	a.works("DEL", nil)
	b.works("CHECK", nil)
	b.works("DEL", nil)
	if diff := cmp.Diff([]string{"device c1.json net7 ", "file c1.json"}, danLines(dir)); diff != "" {
		t.Errorf("the device of others (-want +got):\n%s", diff)
	}
	elsewhere := *a
	elsewhere.netns = n.pod("c2", nil).netns
	wantText(t, elsewhere.fails("ADD", codeBusy, nil), "it is of netns") // the other device is of a sandbox that is not this one
}

// editDAN changes a file behind tapir's back.
func editDAN(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(path)
	mustDo(t, err)
	var f map[string]any
	mustDo(t, json.Unmarshal(data, &f))
	change(f)
	mustDo(t, os.WriteFile(path, marshal(t, f), 0o600))
}

// Interfaces of a sandbox that come at once, and go at once, take turns.
func TestInterfacesOfSandboxComeAndGoAtOnce(t *testing.T) {
	n := newNode(t)
	dir := newDANDir(t)
	c := danConf(dir, object{"ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	first := n.pod("c1", c)
	n.warm(c)
	const count = 8
	for round := range 2 {
		pods := make([]pod, count)
		for i := range pods {
			pods[i] = *first
			pods[i].ifName = fmt.Sprint("net", i)
			pods[i].conf = c.with(object{"name": []string{"pods", "others"}[i%2]})
		}
		each := func(verb string) {
			answers := make([]answer, count)
			var wg sync.WaitGroup
			for i := range pods {
				wg.Go(func() { answers[i] = pods[i].call(verb, nil) })
			}
			wg.Wait()
			for i, a := range answers {
				if a.code != 0 {
					t.Errorf("round %d: %s of %s: %s", round, verb, pods[i].ifName, a)
				}
			}
		}
		each("ADD")
		if _, guests := n.readDAN(filepath.Join(dir, "c1.json")); len(guests) != count {
			t.Errorf("round %d: the file has %d devices, want %d", round, len(guests), count)
		}
		each("CHECK")
		each("DEL")
		if lines := danLines(dir); len(lines) > 0 {
			t.Errorf("round %d: after DEL: %q", round, lines)
		}
	}
}

func TestCheckNamesDriftsOfDANFile(t *testing.T) {
	n := newNode(t)
	dir := newDANDir(t)
	p := n.pod("c1", danConf(dir, nil))
	p.add()
	path := filepath.Join(dir, "c1.json")
	whole, err := os.ReadFile(path)
	mustDo(t, err)
	device := func(change func(map[string]any)) func() {
		return func() {
			editDAN(t, path, func(f map[string]any) { change(f["devices"].([]any)[0].(map[string]any)) })
		}
	}
	for name, d := range map[string]struct {
		cause func()
		want  string
	}{
		"gone":       {func() { mustDo(t, os.Remove(path)) }, "DAN file: open"},
		"cut":        {func() { mustDo(t, os.WriteFile(path, whole[:len(whole)/2], 0o600)) }, "DAN file: read"},
		"netns":      {func() { editDAN(t, path, func(f map[string]any) { f["netns"] = "/run/netns/x" }) }, `netns: want `},
		"no device":  {func() { editDAN(t, path, func(f map[string]any) { f["devices"] = []any{} }) }, "device eth0 is missing"},
		"queues":     {device(func(d map[string]any) { d["device"].(map[string]any)["queue_num"] = 2 }), `"queue_num":2`},
		"MAC":        {device(func(d map[string]any) { d["guest_mac"] = "02:00:00:00:00:01" }), "02:00:00:00:00:01"},
		"other keys": {device(func(d map[string]any) { d["more"] = 1 }), `"more":1`},
	} {
		d.cause()
		wantText(t, p.fails("CHECK", codeDiffers, nil), "DAN file", d.want)
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
		wantText(t, string(n.ctl("doctor", "c1").stdout), "DAN file")
		mustDo(t, os.WriteFile(path, whole, 0o600))
		p.works("CHECK", nil)
	}
	wantText(t, p.fails("CHECK", codeDiffers, object{"vmm": "qemu"}), "DAN file: want none")
	wantText(t, p.fails("CHECK", codeDiffers, object{"danDir": "/else"}), "DAN file: want /else/c1.json")
}

// The file goes whatever DEL knows: by the record, by the configuration's danDir, by what the entry says.
func TestDelRemovesDANFileInEveryState(t *testing.T) {
	n := newNode(t)
	n.warm(hostConf(nil))
	for _, tt := range []struct {
		name  string
		over  object
		cause func(p *pod, path string)
		at    func(dir string) object
	}{
		{"another folder by now", nil, func(*pod, string) {}, func(string) object { return object{"danDir": "/run/else", "vmm": "qemu"} }},
		{"unknown keys", nil, func(*pod, string) {}, func(string) object { return object{"vmm": 7, "placement": []int{1}, "later": true} }},
		{"sandbox gone", nil, func(p *pod, _ string) { removeNetns(t, p.netns) }, nil},
		{"record lost", nil, func(p *pod, _ string) { p.dropRecord() }, func(dir string) object { return object{"vmm": nil, "placement": nil} }},
		{"record lost, name of its user's", object{"tapName": "vmtap0"}, func(p *pod, _ string) { p.dropRecord() }, nil},
		{"record and TAP lost", object{"tapName": "vmtap0"}, func(p *pod, _ string) { p.dropRecord(); deleteLink(t, n.netns, "vmtap0") }, nil},
		{"state lost", nil, func(*pod, string) { mustDo(t, os.RemoveAll(stateDir)) }, nil},
		{"state lost, name of its user's", object{"tapName": "vmtap0"}, func(*pod, string) { mustDo(t, os.RemoveAll(stateDir)) }, nil},
		{"file cut", nil, func(_ *pod, path string) { mustDo(t, os.Truncate(path, 20)) }, nil},
		{"file gone", nil, func(_ *pod, path string) { mustDo(t, os.Remove(path)) }, nil},
		{"folder gone", nil, func(_ *pod, path string) { mustDo(t, os.RemoveAll(filepath.Dir(path))) }, nil},
		{"written half by a killed ADD", nil, func(_ *pod, path string) {
			mustDo(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".tapir.new"), []byte("{"), 0o600))
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDANDir(t)
			p := n.pod("c1", danConf(dir, tt.over))
			p.add()
			path := filepath.Join(dir, "c1.json")
			n.readDAN(path)
			tt.cause(p, path)
			var over object
			if tt.at != nil {
				over = tt.at(dir)
			}
			p.works("DEL", over)
			p.works("DEL", over)
			if lines := danLines(dir); len(lines) > 0 {
				t.Errorf("after DEL: %q", lines)
			}
			if taps := tapNames(t, n.netns); len(taps) > 0 {
				t.Errorf("TAPs after DEL: %q", taps)
			}
		})
	}
}

// GC and the clean-up take the file along, by the record.
func TestCollectedSandboxHasNoDANFile(t *testing.T) {
	n := newNode(t)
	dir := newDANDir(t)
	dead, unnamed, live := n.pod("dead", danConf(dir, nil)), n.pod("unnamed", danConf(dir, nil)), n.pod("live", danConf(dir, nil))
	for _, p := range []*pod{dead, unnamed, live} {
		p.add()
	}
	removeNetns(t, dead.netns)
	if out := n.ctl("cleanup", "--yes"); out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	if lines := strings.Join(danLines(dir), "\n"); strings.Contains(lines, "dead") || !strings.Contains(lines, "unnamed") {
		t.Errorf("after the clean-up: %s", lines)
	}
	caller := n.pod("", danConf(dir, nil))
	caller.netns, caller.ifName = "", ""
	caller.works("GC", object{"cni.dev/valid-attachments": valid(live), "danDir": "/run/else"})
	if files := without(danLines(dir), "device"); !slices.Equal(files, []string{"file live.json"}) {
		t.Errorf("after GC: %q", files)
	}
	live.works("CHECK", nil)
}

// What stands at the file's place and is none of tapir's stays, and ADD says so.
func TestForeignDANFile(t *testing.T) {
	n := newNode(t)
	n.warm(hostConf(nil))
	dir := newDANDir(t)
	mustDo(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, "c1.json")
	mustDo(t, os.WriteFile(path, []byte("not JSON"), 0o600))
	p := n.pod("c1", danConf(dir, nil))
	before := n.snapshot(p.netns)
	wantText(t, p.fails("ADD", codeBusy, nil), path, "none of tapir's")
	wantSame(t, "after the refused ADD", before, n.snapshot(p.netns))
	p.works("DEL", nil)
	if data, err := os.ReadFile(path); err != nil || string(data) != "not JSON" {
		t.Errorf("the foreign file: %q, %v", data, err)
	}
	wantMode(t, dir, 0o755) // it was there
	mustDo(t, os.Remove(path))
	mustDo(t, os.Remove(dir))
	mustDo(t, os.WriteFile(dir, nil, 0o600))
	wantText(t, p.fails("STATUS", 50, nil), "danDir")
	p.fails("ADD", 5, nil)
	wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
	p.works("DEL", nil)
}
