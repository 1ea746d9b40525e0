package install_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// another puts another build of the programs into a folder: the same with something behind it, which the loader does not look at.
func (n *node) another() (from string) {
	n.t.Helper()
	from = n.from + "-other"
	mustDo(n.t, os.MkdirAll(from, 0o755))
	for _, name := range []string{"tapir", "tapir-ipam", "tapirctl"} {
		put(n.t, filepath.Join(from, name), append(read(n.t, command(name)), "another build"...), 0o755)
	}
	return from
}

// The disk is full: the old program stays whole and works, the error says so, and when there is room it is done.
func TestAFullDiskLeavesTheOldProgram(t *testing.T) {
	n := newNode(t, template, nil)
	mustDo(t, unix.Mount("tmpfs", n.bin, "tmpfs", 0, "size=128m"))
	t.Cleanup(func() { mustDo(t, unix.Unmount(n.bin, 0)) })
	d := n.start()
	d.ready()
	d.end(unix.SIGTERM)
	filler := filepath.Join(n.bin, "filler")
	var fs unix.Statfs_t
	mustDo(t, unix.Statfs(n.bin, &fs))
	mustDo(t, os.WriteFile(filler, make([]byte, (int64(fs.Bavail)-16)*fs.Bsize), 0o600))

	n.install["from"] = n.another()
	d = n.start()
	d.notReady("no space left on device; what was there before stays")
	n.same(filepath.Join(n.bin, "tapir"), read(t, command("tapir")))
	n.noTemp()
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	mustDo(t, os.Remove(filler))
	d.ready()
	n.same(filepath.Join(n.bin, "tapir"), read(t, filepath.Join(n.from+"-other", "tapir")))
	mustDo(t, p.cni("DEL"))
	d.end(unix.SIGTERM)
}

// A killed installer leaves each program old or new, the configuration old or new, and the next one sweeps what it was writing.
func TestAKilledInstallerLeavesNothingHalfDone(t *testing.T) {
	n := newNode(t, template, nil)
	other := n.another()
	olds, news := map[string][]byte{}, map[string][]byte{}
	for _, name := range []string{"tapir", "tapir-ipam"} {
		olds[name], news[name] = read(t, filepath.Join(other, name)), read(t, command(name))
	}
	d := n.start()
	began := time.Now()
	d.ready()
	takes := time.Since(began)
	list := read(t, n.own())
	d.end(unix.SIGKILL)

	rounds, half := 40, 0
	if testing.Short() {
		rounds = 8
	}
	for i := range rounds {
		for name, data := range olds {
			put(t, filepath.Join(n.bin, name), data, 0o755)
		}
		mustDo(t, os.RemoveAll(n.own()))
		victim := n.start()
		if i%2 == 0 {
			time.Sleep(rand.N(takes))
		} else { // at one of its first temporary files: then it is writing
			// Without a pause between the looks: on an idle machine it writes for some milliseconds.
			for until := time.Now().Add(patience); ; {
				left, _ := filepath.Glob(filepath.Join(n.bin, ".tapir-new-*"))
				if len(left) > 0 || bytes.Equal(read(t, filepath.Join(n.bin, "tapir-ipam")), news["tapir-ipam"]) {
					break
				}
				if time.Now().After(until) {
					t.Fatalf("round %d: it writes nothing", i)
				}
			}
			time.Sleep(rand.N(3 * time.Millisecond))
		}
		victim.end(unix.SIGKILL)
		fresh := 0
		for name := range olds {
			switch got := read(t, filepath.Join(n.bin, name)); {
			case bytes.Equal(got, news[name]):
				fresh++
			case !bytes.Equal(got, olds[name]):
				t.Errorf("round %d: %s is neither the old nor the new program", i, name)
			}
		}
		left, _ := filepath.Glob(filepath.Join(n.bin, ".tapir-new-*"))
		if fresh == 1 || len(left) > 0 {
			half++
		}
		if got, err := os.ReadFile(n.own()); err == nil && (!bytes.Equal(got, list) || fresh < len(olds)) {
			t.Errorf("round %d: %d programs are new and the configuration is %q", i, fresh, got)
		}
	}
	if half == 0 {
		t.Error("no installer was killed while it wrote: nothing was shown")
	}
	t.Logf("%d of %d were killed while they wrote", half, rounds)
	d = n.start()
	d.ready()
	n.same(filepath.Join(n.bin, "tapir"), news["tapir"])
	n.noTemp()
}

// load adds and deletes pods until stop, by what is installed, and counts what fails.
func (n *node) load(stop <-chan struct{}, workers int) (wait func() (adds, failed int64, last error)) {
	var adds, failed atomic.Int64
	var last atomic.Value
	var all sync.WaitGroup
	for range workers {
		p := n.pod()
		name := p.id
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				p.id = fmt.Sprint(name, "-", i)
				if err := errors.Join(p.cni("ADD"), p.cni("DEL")); err != nil {
					failed.Add(1)
					last.Store(err)
				}
				adds.Add(1)
			}
		})
	}
	return func() (int64, int64, error) {
		all.Wait()
		err, _ := last.Load().(error)
		return adds.Load(), failed.Load(), err
	}
}

// No ADD notices that the programs are installed anew, 200 times, in two builds.
func TestReinstallsUnderADDLoad(t *testing.T) {
	n := newNode(t, template, nil)
	froms := []string{n.from, n.another()}
	reinstall := func(i int) {
		t.Helper()
		o := install.Options{From: froms[i%2], CNIBinDir: n.bin, CNIConfDir: n.conf, Template: n.template()}
		in := install.New(install.Config{Options: o})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- in.Run(ctx) }()
		testnode.Eventually(t, patience, in.Ready)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if in.State().Writes == 0 {
			t.Errorf("reinstall %d wrote nothing", i)
		}
	}
	reinstall(0)
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	stop := make(chan struct{})
	wait := n.load(stop, 2)
	for i := 1; i <= rounds; i++ {
		reinstall(i)
	}
	close(stop)
	adds, failed, last := wait()
	if failed != 0 || adds < int64(rounds)/10 {
		t.Errorf("want no failure, got %d of %d, the last: %v", failed, adds, last)
	}
	t.Logf("%d ADDs and DELs during %d reinstalls", adds, rounds)
	n.noTemp()
}

// What the test above rests on: a program that is written in place is noticed.
func TestADDsNoticeAProgramThatIsWrittenInPlace(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	d.end(unix.SIGTERM)
	stop := make(chan struct{})
	wait := n.load(stop, 2)
	data := read(t, command("tapir"))
	busy := 0
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		f, err := os.OpenFile(filepath.Join(n.bin, "tapir"), os.O_WRONLY, 0)
		if errors.Is(err, unix.ETXTBSY) {
			busy++
			continue
		}
		mustDo(t, err)
		_, err = f.Write(data)
		mustDo(t, errors.Join(err, f.Close()))
	}
	close(stop)
	if adds, failed, _ := wait(); failed == 0 && busy == 0 {
		t.Errorf("want failures, got none in %d ADDs and %d writes", adds, busy)
	}
}
