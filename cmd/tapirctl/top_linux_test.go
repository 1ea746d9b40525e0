package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files anew")

// busy is a node of three attachments after so many seconds: one whose guest sends more and more, one that gets frames and drops some, and one that
// is pending.
func busy(second int) *measure.Sample {
	at := func(id string, r state.Attachment) *measure.Attachment {
		r.Key = state.Key{Network: "pods", ContainerID: id, IfName: "eth0"}
		return &measure.Attachment{Attachment: &watch.Attachment{ID: watch.ID{Dir: state.DefaultDir, Key: r.Key}, Record: r, Netns: watch.NetnsThere}}
	}
	n, yes := uint64(second), 1
	sender := at("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", state.Attachment{Status: state.Ready, PodName: "web", PodNamespace: "shop", TAP: state.Device{Name: "tap-eth0", Index: 1}, XDP: state.XDP{Mode: "native"}})
	sender.TAP = &links.Link{Queues: 2, Stats: links.Stats{RxFrames: 500 * n * n, RxBytes: 750_000 * n * n, TxFrames: 3 * n, TxBytes: 180 * n}}
	sender.Queues = []queueiter.Queue{{NAPI: true, Holders: []queueiter.Holder{{PID: 42, Comm: "firecracker"}}}, {NAPI: true, Holders: []queueiter.Holder{{PID: 42, Comm: "firecracker"}}}}
	sender.NAPI.Threaded = &yes
	getter := at("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", state.Attachment{Status: state.Ready, TAP: state.Device{Name: "tap-eth0", Index: 2}})
	getter.TAP = &links.Link{Queues: 1, Stats: links.Stats{TxFrames: 1000 * n, TxBytes: 60_000 * n, TxDropped: 7 * (n / 2)}}
	getter.Frames = map[xdp.Reason]xdp.Counter{xdp.ReasonSpoofMAC: {Frames: 5}}
	getter.Queues = []queueiter.Queue{{Holders: []queueiter.Holder{{PID: 43, Comm: "qemu-system-x86"}}}}
	pending := at("cccccccccccccccccccccccccccccccc", state.Attachment{Status: state.Pending, TAP: state.Device{Name: "tap-eth0", Index: 3}})
	return &measure.Sample{Time: time.Date(2026, 11, 30, 12, 0, second, 0, time.UTC), Attachments: []*measure.Attachment{sender, getter, pending}}
}

func busyModel(seconds int) *topModel {
	m := &topModel{sort: "from"}
	for i := range seconds {
		m.take(busy(i))
	}
	return m
}

// The frames of a fixed minute, at the widths of terminals, with and without colours.
func TestFramesAreAsTheyWere(t *testing.T) {
	for _, c := range []struct {
		name          string
		width, height int
		colours       bool
		change        func(*topModel)
	}{
		{name: "160x24", width: 160, height: 24},
		{name: "120x24", width: 120, height: 24},
		{name: "80x24", width: 80, height: 24},
		{name: "40x10", width: 40, height: 10},
		{name: "12x3", width: 12, height: 3},
		{name: "80x5-second-row", width: 80, height: 5, change: func(m *topModel) { m.press("\x1b[B", 1) }},
		{name: "80x24-colours-drops", width: 80, height: 24, colours: true, change: func(m *topModel) { m.press("d", 20) }},
		{name: "80x24-paused-reverse", width: 80, height: 24, change: func(m *topModel) { m.press("n", 20); m.press("r", 20); m.press("p", 20) }},
		{name: "80x24-problem", width: 80, height: 24, change: func(m *topModel) { m.problems = []string{"state /run/other:\nit is locked"} }},
	} {
		m := busyModel(31)
		if c.change != nil {
			c.change(m)
		}
		lines := m.frame(c.width, c.height, painter(c.colours))
		if len(lines) > c.height {
			t.Errorf("%s: want at most %d lines, got %d", c.name, c.height, len(lines))
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); !c.colours && n > c.width {
				t.Errorf("%s: want lines of at most %d cells, got %d: %q", c.name, c.width, n, line)
			}
		}
		got := strings.Join(lines, "\n") + "\n"
		if !c.colours && strings.Contains(got, "\x1b") {
			t.Errorf("%s: want no colours, got %q", c.name, got)
		}
		golden := filepath.Join("testdata", "top", c.name+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestSparklinesShowTheLastMinute(t *testing.T) {
	ramp := func(n int) (list []float64) {
		for i := range n {
			list = append(list, float64(i))
		}
		return list
	}
	for _, c := range []struct {
		samples []float64
		cells   int
		want    string
	}{
		{nil, 4, "    "},
		{[]float64{5}, 4, "   █"},
		{[]float64{0, 0}, 4, "   ·"},
		{ramp(60), 8, "▁▂▃▄▅▆▇█"},
		{ramp(30), 4, "  ▄█"},
		{append(ramp(30), make([]float64, 30)...), 4, "▄█··"},
		{ramp(60), 60, ""},
	} {
		got := sparkline(c.samples, c.cells)
		if n := utf8.RuneCountInString(got); n != c.cells {
			t.Errorf("want %d cells, got %d: %q", c.cells, n, got)
		}
		if c.want != "" && got != c.want {
			t.Errorf("%v: want %q, got %q", c.samples, c.want, got)
		}
	}
}

func TestNumbersFitTheirColumns(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 999.6: "1.00k", 1250: "1.25k", 12_345: "12.3k", 99_960: "100k", 999_600: "1.00M", 4e7: "40.0M", 1.5e9: "1.50G", 2e15: "2000T"} {
		if got := scale(v); got != want {
			t.Errorf("%v: want %q, got %q", v, want, got)
		}
	}
}

// A rate is of the time that really passed; without a sample before, or with a counter that began anew, there is none.
func TestRatesAreOfTheTimeThatPassed(t *testing.T) {
	m := busyModel(1)
	for _, r := range m.rows {
		if r.Rates != nil {
			t.Errorf("the first sample: want no rates, got %+v", r.Rates)
		}
	}
	m.take(busy(10))
	if got := m.rows[0].rates(); got.FromFrames != 5000 || got.FromBits != 8*7_500_000 {
		t.Errorf("want 50000 frames in ten seconds, got %+v", got)
	}
	m.take(busy(10)) // the same sample again changes nothing
	if m.rows[0].Rates == nil {
		t.Error("want the rates to stay")
	}
	anew := busy(11)
	anew.Attachments[0].TAP.Stats = links.Stats{RxFrames: 1}
	m.take(anew)
	for _, r := range m.rows {
		if r.Pod == "shop/web" && r.Rates != nil {
			t.Errorf("counters that began anew: want no rates, got %+v", r.Rates)
		}
	}
	m.take(busy(12))
	for i := range 100 {
		m.take(busy(13 + i))
	}
	if n := len(m.rows[0].from); n != minute {
		t.Errorf("want a minute's samples, got %d", n)
	}
}

func TestKeysScrollAndEnd(t *testing.T) {
	m := busyModel(3)
	if m.press("q", 1) || m.press("\x1b", 1) {
		t.Error("want q and Escape to end")
	}
	if !m.press("\x1b[F", 1) || m.first == 0 {
		t.Error("want End to scroll")
	}
	if lines := m.frame(80, 5, false); !strings.Contains(lines[len(lines)-1], "ccc") {
		t.Errorf("want the last row in sight, got %q", lines)
	}
	m.press("\x1b[A", 1)
	if lines := m.frame(80, 5, false); !strings.Contains(lines[3], "shop/web") {
		t.Errorf("want the first row in sight again, got %q", lines)
	}
	for _, k := range sortKeys {
		if m.press(string(k.key), 1); m.sort != k.name || m.first != 0 {
			t.Errorf("key %c: want order %q from the first row, got %q from %d", k.key, k.name, m.sort, m.first)
		}
	}
}

// On a real node: what top counts is what the kernel counts, and it needs no tapird.
func TestTopShowsTheTrafficOfRealTAPs(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000301, 1)
	tag(t, a)
	q := openTAP(t, a, 1, true)
	frame := make([]byte, 12+60)
	copy(frame[12:], []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0})
	for range 100 {
		if _, err := unix.Write(q.FDs()[0], frame); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = unix.Write(q.FDs()[0], frame) // seen by the rate that is missing
			}
		}
	}()
	out := command(t, "top", "--once", "-o", "json", "--interval", "400ms", "--state-dir", dir, "--bpffs", filepath.Join("/sys/fs/bpf", "none"))
	close(stop)
	<-done
	var got struct{ Attachments []topRow }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got.Attachments) != 1 {
		t.Fatalf("want one attachment, got %s", out)
	}
	r := got.Attachments[0]
	if r.ContainerID != "aaaa" || r.Attached != 1 || r.NAPI == 0 || r.Counters.FromFrames < 100 || r.Counters.FromBytes != 60*r.Counters.FromFrames {
		t.Errorf("got %s", out)
	}
	// On a busy machine a counter may be read a good while after its sample began: the exact arithmetic has its own test.
	if r.Rates == nil || r.Rates.FromFrames < 1 || r.Rates.FromFrames > 2000 {
		t.Errorf("want about 200 frames a second, got %+v", r.Rates)
	}
	table := command(t, "top", "--once", "--interval", "300ms", "--state-dir", dir)
	if !strings.Contains(table, "aaaa eth0") || strings.Contains(table, "\x1b") || strings.Contains(table, "q quit") {
		t.Errorf("want a plain table, got\n%s", table)
	}
}

// tag sets the ifalias, by which a device is known as the attachment's.
func tag(t *testing.T, a state.Attachment) {
	t.Helper()
	testnode.In(t, a.Netns, func() {
		if out, err := exec.Command("ip", "link", "set", a.TAP.Name, "alias", a.Alias()).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
}

// On a terminal it draws until q, and leaves the terminal as it was. The terminal is a pty of the test.
func TestTopOnATerminal(t *testing.T) {
	dir := t.TempDir()
	sandbox(t, dir, "aaaa", 2000302, 1)
	master, slave := openPTY(t)
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 80}); err != nil {
		t.Fatal(err)
	}
	was, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = slave
	defer func() { os.Stdin = stdin }()
	t.Setenv("NO_COLOR", "1")
	screen := &screenBuffer{}
	go screen.from(master)
	root := newRoot()
	root.SetArgs([]string{"top", "--interval", "300ms", "--state-dir", dir})
	root.SetOut(slave)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(t.Context()) }()
	wait := func(text string) {
		t.Helper()
		for until := time.Now().Add(30 * time.Second); !strings.Contains(screen.String(), text); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("want %q on the terminal, got %q", text, screen.String())
			}
		}
	}
	wait(enterScreen)
	wait("aaaa eth0")
	wait("sorted by from ▼")
	key := func(k string) {
		if _, err := fmt.Fprint(master, k); err != nil {
			t.Fatal(err)
		}
	}
	key("d")
	wait("sorted by drops ▼")
	key("q")
	select {
	case endErr := <-ended:
		if endErr != nil {
			t.Error(endErr)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("q does not end it")
	}
	wait(leaveScreen)
	now, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("the terminal's settings (-before +after):\n%s", diff)
	}
	for _, colour := range []string{"\x1b[1m", "\x1b[31m", "\x1b[7m"} {
		if strings.Contains(screen.String(), colour) {
			t.Errorf("NO_COLOR: got %q", colour)
		}
	}
}

// openPTY gives both ends of a pseudo terminal (pty(7)).
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() }) // its reader ends by it
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}
