package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/metrics"
)

// patience is how long what is bound to happen may take on a busy machine.
const patience = 30 * time.Second

// diary is what parts did, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		d.mu.Lock()
		got = slices.Clone(d.lines)
		d.mu.Unlock()
		if slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("want %q, got %q", want, got)
}

func (d *diary) part(name string) part {
	return part{
		name: name,
		open: func() error { d.add("open %s", name); return nil },
		run: func(ctx context.Context) error {
			<-ctx.Done()
			d.add("end %s", name)
			return nil
		},
		reload: func(c Config) error { d.add("reload %s %s", name, c.BPFFS); return nil },
		plan:   func(_ context.Context, out io.Writer) error { _, err := fmt.Fprintln(out, name); return err },
	}
}

func (a *Agent) runParts(t *testing.T, parts ...part) (stop func() error) {
	t.Helper()
	if a.parts = parts; a.pause == firstPause {
		a.pause = time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	started := make(chan struct{})
	go func() { done <- a.Run(ctx, func() { close(started) }) }()
	t.Cleanup(cancel)
	select {
	case <-started:
	case err := <-done:
		done <- err
	}
	return func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("the agent does not end")
			return nil
		}
	}
}

func TestPartsOpenInOrderAndEndInReverse(t *testing.T) {
	a, d := New(Config{}), &diary{}
	stop := a.runParts(t, d.part("one"), d.part("two"), part{name: "no more than a plan"}, d.part("three"))
	if err := a.Reload(context.Background(), Config{BPFFS: "x"}); err != nil {
		t.Error(err)
	}
	d.want(t, "open one", "open two", "open three", "reload one x", "reload two x", "reload three x")
	if err := stop(); err != nil {
		t.Error(err)
	}
	d.want(t, "open one", "open two", "open three", "reload one x", "reload two x", "reload three x", "end three", "end two", "end one")
}

func TestAPartThatCannotBeOpenedEndsTheAgent(t *testing.T) {
	a, d := New(Config{}), &diary{}
	broken := d.part("broken")
	broken.open = func() error { return errors.New("taken") }
	if err := a.runParts(t, d.part("one"), broken, d.part("three"))(); err == nil || err.Error() != "taken" {
		t.Errorf("want the part's error, got %v", err)
	}
	d.want(t, "open one")
}

// One that fails is run again, and the others do not notice. One that ends by itself has failed too.
func TestAPartThatFailsIsRunAgain(t *testing.T) {
	a, d := New(Config{}), &diary{}
	runs := 0
	failing := part{name: "failing", run: func(ctx context.Context) error {
		runs++
		d.add("run %d", runs)
		switch runs {
		case 1:
			return errors.New("the kernel said no")
		case 2:
			return nil
		}
		<-ctx.Done()
		return nil
	}}
	stop := a.runParts(t, d.part("one"), failing)
	d.want(t, "open one", "run 1", "run 2", "run 3")
	if err := stop(); err != nil {
		t.Error(err)
	}
	d.want(t, "open one", "run 1", "run 2", "run 3", "end one")
}

// A part that is paused after a failure does not keep the agent from ending.
func TestTheAgentEndsWhileAPartWaits(t *testing.T) {
	a := New(Config{})
	a.pause = time.Hour
	failed := make(chan struct{})
	var once sync.Once
	failing := part{name: "failing", run: func(context.Context) error { once.Do(func() { close(failed) }); return errors.New("no") }}
	stop := a.runParts(t, failing)
	<-failed
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestReloadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := New(Config{}).Reload(ctx, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("want the context's error of an agent that does not run, got %v", err)
	}
}

// A part from outside runs between the agent's own and the installation, and /readyz has its word.
func TestPartsFromOutside(t *testing.T) {
	var why error
	outside := Part{
		Name: "outside", Run: func(ctx context.Context) error { <-ctx.Done(); return nil },
		Ready: func() error { return why }, Notes: func() []string { return []string{"a note"} },
	}
	a := New(Config{Parts: []Part{outside}, Install: install.Config{Options: install.Options{From: "/nonexistent"}}})
	var names []string
	for _, p := range a.parts {
		names = append(names, p.name)
	}
	if n := len(names); n < 3 || names[n-2] != "outside" || names[n-1] != "install" {
		t.Errorf("want outside and install last, got %q", names)
	}
	at := func() metrics.Part {
		all := a.status.list()
		return all[slices.IndexFunc(all, func(p metrics.Part) bool { return p.Name == "outside" })]
	}
	if p := at(); p.Running || p.Ready() {
		t.Errorf("before it runs: got %+v", p)
	}
	a.status.set(slices.IndexFunc(a.status.list(), func(p metrics.Part) bool { return p.Name == "outside" }), true, nil)
	if p := at(); !p.Ready() || !slices.Equal(p.Notes, []string{"a note"}) {
		t.Errorf("while it is ready: got %+v", p)
	}
	why = errors.New("the API server is away")
	if p := at(); p.Ready() || p.NotReady != why.Error() {
		t.Errorf("while it is not: got %+v", p)
	}
}
