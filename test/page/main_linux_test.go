// Package page_test opens tapird's status page in headless Chromium. It is a module of its own, so that the browser's protocol is
// not a dependency of the product.
package page_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if testnode.Inside() || unix.Geteuid() != 0 || os.Getenv(testnode.BinDirEnv) != "" {
		testnode.Main(m)
	}
	code, err := buildAndRun()
	if err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// buildAndRun builds the commands in their own module, runs this binary again with them and removes them: testnode.Main does not return.
func buildAndRun() (code int, err error) {
	dir, err := os.MkdirTemp("", "tapir-page-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	build := exec.Command("go", "-C", "../..", "build", "-trimpath", "-o", dir+"/", "./cmd/tapir", "./cmd/tapird")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the commands: %w: %s", err, text)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0], cmd.Env = os.Args[0], append(os.Environ(), testnode.BinDirEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// The process's first thread is the main goroutine's alone: in a sandbox's namespace it would stay, and keep the namespace.
func init() { runtime.LockOSThread() }

// patience is how long what is bound to happen may take on a busy machine.
const patience = 60 * time.Second

func bin(name string) string { return filepath.Join(os.Getenv(testnode.BinDirEnv), name) }

// requireNode is for tests that run tapir and tapird in the netns that the tests are in, which is a node of its own.
func requireNode(t testing.TB) {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf", "btf", "chromium")
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

// A pod is an attachment that ADD made.
type pod struct{ id, netns string }

func add(t testing.TB, id string) pod {
	t.Helper()
	p := pod{id: id, netns: testnode.NewNetns(t)}
	p.cni(t, "ADD")
	t.Cleanup(func() { p.cni(t, "DEL") })
	return p
}

func (p pod) cni(t testing.TB, verb string) {
	t.Helper()
	cmd := exec.Command(bin("tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=name-of-" + p.id + ";K8S_POD_NAMESPACE=shop"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400,
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s of %s: %v: %s", verb, p.id, err, out)
	}
}

// startDaemon runs tapird until the test ends, and waits for its page.
func startDaemon(t testing.TB, address string) {
	t.Helper()
	cmd := exec.Command(bin("tapird"), "--page-bind-address", address)
	log := &output.Buffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // it may have ended
		_ = cmd.Wait()
	})
	testnode.Eventually(t, patience, func() error {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return fmt.Errorf("%w; tapird says: %s", err, log)
		}
		return c.Close()
	})
}

// ethernet is a frame from the guest to the gateway: IPv4 and UDP, to nobody on the node.
func ethernet(source net.HardwareAddr, from net.IP) []byte {
	f := make([]byte, 10+14+28) // virtio-net header, Ethernet, IPv4, UDP
	copy(f[10:], []byte{0x02, 0x74, 0x61, 0x70, 0x69, 0x72})
	copy(f[16:], source)
	binary.BigEndian.PutUint16(f[22:], unix.ETH_P_IP)
	ip := f[24:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], 28)
	copy(ip[12:], from.To4())
	copy(ip[16:], []byte{192, 0, 2, 1})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(ip[24:], 8)
	return f
}

// browser is a tab that remembers what went wrong in it and whom it asked.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	faults   []string // errors of the console and exceptions
	requests []string // URLs
}

// openBrowser starts Chromium of its own for the test, without a display and away from all networks but the node's. At the end it must have
// had no fault and have asked nobody but the server at address.
func openBrowser(t testing.TB, address string, width, height int) *browser {
	t.Helper()
	home := t.TempDir() // Chromium, and what it is made of, write to more than its profile
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(filepath.Join(home, "profile")), chromedp.Env("HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home), chromedp.WindowSize(width, height), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("no-pings", true),
		chromedp.Flag("headless", "new"), chromedp.CombinedOutput(&output.Buffer{}))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	ctx, stopProcess := chromedp.NewExecAllocator(ctx, options...)
	ctx, _ = chromedp.NewContext(ctx)
	b := &browser{t: t, ctx: ctx}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("end Chromium: %v", err)
		}
		stopProcess()
		cancel()
		b.wantQuiet(address)
	})
	b.run() // opens the tab
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	b.run(command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}), command(cdpruntime.Enable, cdp.Empty{}),
		chromedp.EmulateViewport(int64(width), int64(height)))
	return b
}

// command is a command of the protocol as a step.
func command[P any](c cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *cdpruntime.EventExceptionThrown:
		b.faults = append(b.faults, fmt.Sprintf("exception: %s, line %d: %s", e.ExceptionDetails.Text, e.ExceptionDetails.LineNumber, exceptionText(e.ExceptionDetails)))
	case *cdpruntime.EventConsoleAPICalled:
		b.faults = append(b.faults, fmt.Sprintf("console %s: %s", e.Type, e.Args[0].Value))
	case *log.EventEntryAdded:
		b.faults = append(b.faults, fmt.Sprintf("log %s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func exceptionText(d *cdpruntime.ExceptionDetails) string {
	if d.Exception == nil {
		return ""
	}
	return d.Exception.Description
}

func (b *browser) wantQuiet(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("the page made a fault: %s", f)
	}
	own := "http://" + address + "/"
	asked := 0
	for _, r := range b.requests {
		switch {
		case strings.HasPrefix(r, own):
			asked++
		case !strings.HasPrefix(r, "data:") && r != "about:blank":
			b.t.Errorf("a request leaves for another host: %s", r)
		}
	}
	if asked == 0 {
		b.t.Errorf("want requests to %s, got %q", own, b.requests)
	}
}

func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// visit opens the page and waits for its first answer.
func (b *browser) visit(address string) {
	b.t.Helper()
	b.run(chromedp.Navigate("http://" + address + "/"))
	b.until(`document.getElementById("state").textContent === "live"`)
}

// eval gives the value of an expression of JavaScript.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	testnode.Eventually(b.t, patience, func() error {
		if !eval[bool](b, "!!("+expression+")") {
			return fmt.Errorf("want %s; the page says %.600q", expression, eval[string](b, `document.body.innerText + " filter " + document.getElementById("filter")?.value`))
		}
		return nil
	})
}

// key presses one, as chromedp/kb names it.
func (b *browser) key(k string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(k))
}

// typed presses a key with a character as a keyboard does: the character is part of the press, and goes with it where the page takes the press.
func (b *browser) typed(character string) {
	b.t.Helper()
	b.run(
		command(input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: character, Text: character}),
		command(input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: character}),
	)
}
