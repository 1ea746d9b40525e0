package install_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

const ownTemplate = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [
	{"type": "tapir", "mtu": 1400, "ipam": {"type": "tapir-ipam", "reuseDelay": "0s", "ranges": [[{"subnet": "10.9.0.0/16"}]]}}%s]}`

var template = fmt.Sprintf(ownTemplate, "")

func TestTheConfigurationComesLastAndOnlyWhenAnADDWouldWork(t *testing.T) {
	n := newNode(t, fmt.Sprintf(ownTemplate, `, {"type": "other"}`), object{"podAnnotations": []string{"queues"}})
	d := n.start()
	d.notReady(`the program "other" is not in ` + n.bin)
	n.same(filepath.Join(n.bin, "tapir"), read(t, command("tapir")))
	n.same(filepath.Join(n.bin, "tapir-ipam"), read(t, command("tapir-ipam")))
	n.same(filepath.Join(n.tools, "tapirctl"), read(t, command("tapirctl")))
	n.absent(n.own())

	other := filepath.Join(n.bin, "other")
	put(t, other, []byte("#!/bin/sh\n"), 0o644)
	d.notReady("cannot be executed")
	n.absent(n.own())
	put(t, other, []byte("#!/bin/sh\n"+`echo '{"cniVersion": "1.1.0", "code": 50, "msg": "its daemon is not there"}'; exit 1`+"\n"), 0o755)
	d.notReady("its daemon is not there")
	n.absent(n.own())
	put(t, other, []byte("#!/bin/sh\n"), 0o755)
	d.ready()

	var list struct{ Plugins []object }
	mustDo(t, json.Unmarshal(read(t, n.own()), &list))
	if got := fmt.Sprint(list.Plugins[0]["podAnnotations"], list.Plugins[0]["capabilities"]); got != "[queues] map[io.kubernetes.cri.pod-annotations:true]" {
		t.Errorf("what pods may choose: got %s", got)
	}
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	mustDo(t, p.cni("DEL"))

	// When an ADD would no longer work, the configuration stays, which has the runtime ask for STATUS, and the reason is said.
	put(t, other, []byte("#!/bin/sh\n"+`echo '{"cniVersion": "1.1.0", "code": 50, "msg": "its daemon has died"}'; exit 1`+"\n"), 0o755)
	d.notReady("its daemon has died")
	if _, err := os.Stat(n.own()); err != nil {
		t.Error(err)
	}
	n.noTemp()
}

// Without ranges of the template's and without a cluster that tells them there is no configuration, and the reason is said.
func TestAConfigurationWithoutRangesWaits(t *testing.T) {
	n := newNode(t, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "tapir", "ipam": {"type": "tapir-ipam"}}]}`, nil)
	d := n.start()
	d.notReady("the node has no ranges yet")
	n.absent(n.own())
	n.writeTemplate(template) // as an operator who has seen it
	d.ready()
}

func TestWhatIsRemovedOrEditedComesBack(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	list, plugin := read(t, n.own()), read(t, command("tapir"))
	installed := filepath.Join(n.bin, "tapir")
	for what, change := range map[string]func() error{
		"the configuration is removed": func() error { return os.Remove(n.own()) },
		"the configuration is edited":  func() error { return os.WriteFile(n.own(), []byte("{}"), 0o644) },
		"its folder is removed":        func() error { return os.RemoveAll(n.conf) },
		"the plugin is removed":        func() error { return os.Remove(installed) },
		"the plugin is another":        func() error { put(t, installed, []byte("#!/bin/sh\n"), 0o755); return nil },
		"the plugin's mode is another": func() error { return os.Chmod(installed, 0o600) },
		"the folder of the plugins is removed": func() error {
			return os.RemoveAll(n.bin)
		},
	} {
		mustDo(t, change())
		n.same(n.own(), list)
		n.same(installed, plugin)
		testnode.Eventually(t, patience, func() error {
			if info, err := os.Stat(installed); err != nil || info.Mode() != 0o755 {
				return fmt.Errorf("%s: mode %v, %v", what, info, err)
			}
			return nil
		})
	}
	d.ready()
	n.writeTemplate(strings.Replace(template, "1400", "1300", 1))
	testnode.Eventually(t, patience, func() error {
		if got := read(t, n.own()); !strings.Contains(string(got), "1300") {
			return fmt.Errorf("want the template's MTU, got %s", got)
		}
		return nil
	})
	n.noTemp()
}

// Somebody removes the configuration as often as it comes: that is said, and no hot loop.
func TestNoHotLoopWhereSomebodyUndoesIt(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	list, removed := read(t, n.own()), 0
	undo := func(while func() bool) {
		for while() {
			if os.Remove(n.own()) == nil {
				removed++
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	const told = "somebody undoes what is written to "
	began := time.Now()
	undo(func() bool { return !strings.Contains(d.log.String(), told) && time.Since(began) < patience })
	d.notReady(told + n.own())
	removed = 0
	began = time.Now()
	undo(func() bool { return time.Since(began) < 4*time.Second })
	if removed > 4 { // after 0, 1 and 2 s more, and one that may be under way
		t.Errorf("want it back at most 4 times within 4 s, got %d", removed)
	}
	n.same(n.own(), list) // it is back in the end
}

func TestForeignConfigurationsAreReportedAndLeftAlone(t *testing.T) {
	n := newNode(t, template, nil)
	foreign := filepath.Join(n.conf, "05-other.conflist")
	text := []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "other"}]}`)
	put(t, foreign, text, 0o600)
	put(t, filepath.Join(n.conf, "20-later.conflist"), text, 0o600)
	d := n.start()
	d.ready()
	d.says("the runtime takes other configurations before tapir's")
	notes := func(want string) {
		t.Helper()
		testnode.Eventually(t, patience, func() error {
			_, r, err := ready()
			if got := strings.Join(r.Notes, "; "); err == nil && got != want {
				err = fmt.Errorf("want the notes %q, got %q", want, got)
			}
			return err
		})
	}
	notes("the runtime takes " + foreign + " before tapir's configuration")
	metric := func(name, want string) {
		t.Helper()
		testnode.Eventually(t, patience, func() error {
			code, body, err := get("/metrics")
			if err == nil && (code != http.StatusOK || !strings.Contains(string(body), "\n"+name+" "+want+"\n")) {
				err = fmt.Errorf("want %s %s, got %d: %s", name, want, code, grep(body, name))
			}
			return err
		})
	}
	metric("tapir_install_foreign_configurations", "1")
	metric(`tapir_agent_part_ready{part="install"}`, "1")
	n.same(foreign, text)
	mustDo(t, os.Remove(foreign))
	notes("")
	metric("tapir_install_foreign_configurations", "0")
	http.DefaultClient.CloseIdleConnections()
}

func grep(text []byte, word string) (lines []string) {
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, word) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestADryRunSaysWhatWouldBeInstalled(t *testing.T) {
	n := newNode(t, template, nil)
	put(t, filepath.Join(n.bin, "tapir-ipam"), read(t, command("tapir-ipam")), 0o755)
	before := ls(t, filepath.Dir(n.conf))
	out, err := exec.Command(command("tapird"), "--config", n.config(), "--dry-run").CombinedOutput()
	mustDo(t, err)
	for _, want := range []string{
		"install: write " + filepath.Join(n.bin, "tapir"), "install: keep " + filepath.Join(n.bin, "tapir-ipam"), "install: write the configuration " + n.own(),
		`install: now an ADD would fail: the program "tapir" is not in`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q, got %s", want, out)
		}
	}
	if after := ls(t, filepath.Dir(n.conf)); after != before {
		t.Errorf("want nothing changed, got\n%s, was\n%s", after, before)
	}
}

func ls(t testing.TB, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-not", "-name", "tapird.json", "-type", "f", "-printf", "%p %s %T@\n").Output()
	mustDo(t, err)
	return string(out)
}

// Faults of the configuration are told with their places; what cannot change while tapird runs waits.
func TestFaultsOfTheConfigurationAreTold(t *testing.T) {
	n := newNode(t, template, object{"mode": "chaind", "cniBinDir": "bin", "name": "10-tapir.conf", "template": ""})
	out, err := exec.Command(command("tapird"), "--config", n.config(), "--check").CombinedOutput()
	if err == nil {
		t.Errorf("want an error, got %s", out)
	}
	for _, want := range []string{`install.mode`, `install.cniBinDir: want an absolute path, got "bin"`, `install.name`, `install.template`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q, got %s", want, out)
		}
	}
}

func TestCheckLooksAtWhatIsToBeInstalled(t *testing.T) {
	n := newNode(t, template, nil)
	check := func() (string, error) {
		out, err := exec.Command(command("tapird"), "--config", n.config(), "--check").CombinedOutput()
		return string(out), err
	}
	if out, err := check(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	mustDo(t, os.Remove(filepath.Join(n.from, "tapir-ipam")))
	n.writeTemplate(`{"name": "pods", "plugins": [{"type": "bridge"}]}`)
	out, err := check()
	for _, want := range []string{`install.from: the program "tapir-ipam" is not in ` + n.from, `plugins: want one of type "tapir", got none`} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("want %q, got %v: %s", want, err, out)
		}
	}
}
