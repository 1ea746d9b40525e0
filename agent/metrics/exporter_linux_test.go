package metrics

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// told is a tuner and a reconciler with something to tell.
type told struct{}

func (told) Decisions() []Decisions {
	return []Decisions{{"rule", "small", "done", 3}, {"ring", "grown", "failed", 1}}
}
func (told) LostByResize() uint64 { return 7 }
func (told) Foreign() int         { return 1 }
func (told) Writes() uint64       { return 4 }
func (told) Findings() []Findings {
	return []Findings{{Kind: "stray-dan", Found: 2, Repaired: 1, Failed: 1, Open: 1}, {Kind: "never"}}
}

// The families are consistent by the registry's own rules, whose checks the exporter goes without, and clean in promlint's eyes; each
// has the labels that the table says, and those that a node without hardware can have are there.
func TestFamiliesAreWhatTheTableSays(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2, "runtimeConfig": {"bandwidth": {"ingressRate": 1000000000, "ingressBurst": 10000000, "egressRate": 1000000000, "egressBurst": 10000000}},`)
	p.open(2)
	n := start(t, Config{Tuner: told{}, Reconciler: told{}, Install: told{}, Uplinks: []string{"lo"}, Parts: func() []Part { return []Part{{Name: "watch", Running: true}} }})
	consistent := prometheus.Gatherers{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		list, _, err := n.exporter.Gather() // never done: they are looked at below
		return list, err
	})}
	list, err := consistent.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(list).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %+v", err, problems)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range list {
		byName[f.GetName()] = f
	}
	for i := range families {
		f := &families[i]
		got := byName[f.name]
		if got == nil {
			if f.scope != ofDevice && !strings.HasPrefix(f.name, "tapir_shortcut_") {
				t.Errorf("%s has no series", f.name)
			}
			continue
		}
		want := slices.Sorted(slices.Values(f.allLabels()))
		for _, m := range got.Metric {
			var names []string
			for _, l := range m.Label {
				names = append(names, l.GetName())
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				t.Errorf("%s: want labels %q, got %q", f.name, want, names)
			}
		}
		delete(byName, f.name)
	}
	for name := range byName {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// What each series of an attachment says is what was done to it.
func TestAnAttachmentsSeries(t *testing.T) {
	requireNode(t)
	quiet(t)
	p := add(t, `"queues": 2, "txQueueLen": 500,`)
	other := add(t, "")
	q := p.open(2)
	n := start(t, Config{})
	const sent = 20
	for i := range uint32(sent) {
		p.write(q, packet(gateway(t), p.device("eth0").HardwareAddr, p.address(), net.IPv4(10, 9, 0, 1), i))
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	n.eventually(p.wants(map[string]float64{
		"tapir_attachment_info{tap=tap-eth0,vmm=generic,placement=pod,state_dir=/run/tapir}": 1,
		"tapir_attachment_netns_lost":                 0,
		"tapir_tap_from_guest_frames_total":           sent,
		"tapir_tap_from_guest_bytes_total":            sent * packetSize,
		"tapir_tap_to_guest_frames_total":             0,
		"tapir_redirect_frames_total{reason=to_host}": sent,
		"tapir_redirect_bytes_total{reason=to_host}":  sent * packetSize,
		"tapir_tap_queues{state=enabled}":             2,
		"tapir_tap_queues{state=disabled}":            0,
		"tapir_tap_ring_frames":                       500,
		"tapir_tap_napi_threaded":                     0,
		"tapir_tap_gro_flush_timeout_seconds":         0,
		"tapir_tap_carrier_ups_total":                 1,
		"tapir_queue_info{queue=1,opened=by_name,program=" + strings.TrimSpace(string(comm)) + "}": 1,
		"tapir_queue_napi{queue=1}":        1,
		"tapir_queue_ring_frames{queue=0}": 500,
	}))
	n.eventually(other.wants(map[string]float64{"tapir_tap_from_guest_frames_total": 0, "tapir_tap_queues{state=enabled}": 0, "tapir_tap_carrier_ups_total": 0}))
	s := n.scrape()
	if got, err := s.value("tapir_ipam_leased_addresses"); err != nil || got != 2 {
		t.Errorf("want two leases, got %g, %v", got, err)
	}
	if got, err := s.value("tapir_attachments", "status=ready"); err != nil || got != 2 {
		t.Errorf("want two attachments, got %g, %v", got, err)
	}
	if err := errors.Join(unix.Unmount(p.netns, unix.MNT_DETACH), os.Remove(p.netns), q.Close()); err != nil {
		t.Fatal(err)
	}
	n.eventually(func(s scraped) error {
		if _, err := s.value("tapir_tap_ring_frames", "container_id="+p.id); err == nil {
			return errors.New("a TAP that is gone has series")
		}
		return p.wants(map[string]float64{"tapir_attachment_netns_lost": 1})(s)
	})
}

func gateway(t testing.TB) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC("02:74:61:70:69:72")
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// write has the guest send a frame, without a virtio-net header's wishes.
func (p *pod) write(q *tap.Queues, frame []byte) {
	p.t.Helper()
	if _, err := unix.Write(q.FDs()[0], append(make([]byte, vnetHdr), frame...)); err != nil {
		p.t.Fatal(err)
	}
}

// Frames to a guest that reads too slowly are numbered; those that it never sees are those that the metric counts, for each TAP its own.
func TestRingFullDropsAreTheFramesThatWereLost(t *testing.T) {
	requireNode(t)
	quiet(t)
	n := start(t, Config{})
	for _, tt := range []struct{ ring, sent int }{{8, 40}, {16, 100}, {64, 30}} {
		p := add(t, fmt.Sprintf(`"txQueueLen": %d,`, tt.ring))
		q := p.open(1)
		peer := hostEnd(t, p)
		for i := range tt.sent {
			peer.send(t, packet(p.device("eth0").HardwareAddr, gateway(t), net.IPv4(10, 9, 0, 1), p.address(), uint32(i)))
		}
		// All went through the veth and to the TAP before any is read.
		n.eventually(p.wants(map[string]float64{"tapir_redirect_frames_total{reason=to_guest}": float64(tt.sent)}))
		seen := map[uint32]bool{}
		buf := make([]byte, 2048)
		for {
			size, err := unix.Read(q.FDs()[0], buf)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if frame := buf[vnetHdr:size]; len(frame) == packetSize {
				seen[binary.BigEndian.Uint32(frame[packetSize-4:])] = true
			}
		}
		lost := 0
		for i := range uint32(tt.sent) {
			if !seen[i] {
				lost++
			}
		}
		if wantLoss := tt.sent > tt.ring; (lost > 0) != wantLoss {
			t.Fatalf("ring of %d, %d frames: want frames lost: %t, got %d", tt.ring, tt.sent, wantLoss, lost)
		}
		n.eventually(p.wants(map[string]float64{
			"tapir_tap_dropped_frames_total{reason=ring_full}": float64(lost),
			"tapir_tap_to_guest_frames_total":                  float64(len(seen)),
		}))
	}
}

// raw sends frames out of a device of the node.
type raw struct{ fd int }

func hostEnd(t testing.TB, p *pod) raw {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: p.device("eth0").ParentIndex}); err != nil {
		t.Fatal(err)
	}
	return raw{fd}
}

func (r raw) send(t testing.TB, frame []byte) {
	t.Helper()
	if _, err := unix.Write(r.fd, frame); err != nil {
		t.Fatal(err)
	}
}

// Each forged frame is counted under its reason, and no other.
func TestSpoofDropsAreTheForgedFrames(t *testing.T) {
	requireNode(t)
	quiet(t)
	p := add(t, "")
	q := p.open(1)
	n := start(t, Config{})
	own, gw := p.device("eth0").HardwareAddr, gateway(t)
	stranger := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	send := func(count int, frame []byte) {
		for range count {
			p.write(q, frame)
		}
	}
	send(5, packet(gw, own, p.address(), net.IPv4(10, 9, 0, 1), 0))
	send(7, packet(gw, stranger, p.address(), net.IPv4(10, 9, 0, 1), 0))
	send(11, packet(gw, own, net.IPv4(10, 9, 0, 200), net.IPv4(10, 9, 0, 1), 0))
	tagged := packet(gw, own, p.address(), net.IPv4(10, 9, 0, 1), 0)
	binary.BigEndian.PutUint16(tagged[12:], unix.ETH_P_8021Q)
	send(3, tagged)
	n.eventually(p.wants(map[string]float64{
		"tapir_redirect_frames_total{reason=to_host}":       5,
		"tapir_tap_dropped_frames_total{reason=spoof_mac}":  7,
		"tapir_tap_dropped_frames_total{reason=spoof_ipv4}": 11,
		"tapir_tap_dropped_frames_total{reason=vlan}":       3,
		"tapir_tap_dropped_frames_total{reason=ring_full}":  0,
	}))
}

// A guest over its limit loses frames at the shaper, and they are counted there.
func TestShaperDropsAreCounted(t *testing.T) {
	requireNode(t)
	quiet(t)
	p := add(t, `"runtimeConfig": {"bandwidth": {"ingressRate": 8000, "ingressBurst": 8000, "egressRate": 8000, "egressBurst": 8000}},`)
	q := p.open(1)
	n := start(t, Config{})
	peer := hostEnd(t, p)
	const sent = 3000 // far more than bucket and queue (25 ms and a burst) hold
	for i := range uint32(sent) {
		p.write(q, packet(gateway(t), p.device("eth0").HardwareAddr, p.address(), net.IPv4(10, 9, 0, 1), i))
		_, err := unix.Write(peer.fd, packet(p.device("eth0").HardwareAddr, gateway(t), net.IPv4(10, 9, 0, 1), p.address(), i))
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	for _, reason := range []string{"shaper_to_guest", "shaper_from_guest"} {
		got, err := n.scrape().value("tapir_tap_dropped_frames_total", "container_id="+p.id, "reason="+reason)
		if err != nil || got < sent/2 || got >= sent {
			t.Errorf("%s: want most of %d, got %g, %v", reason, sent, got, err)
		}
	}
}

// Twenty processes call at once; each call is counted once, under its verb and what became of it.
func TestCallsAreCounted(t *testing.T) {
	requireNode(t)
	n := start(t, Config{})
	const processes = 20
	pods := make([]*pod, processes)
	for i := range pods {
		pods[i] = newPod(t, "")
	}
	var all sync.WaitGroup
	calls := []struct {
		verb, code string
		call       func(pod) ([]byte, error)
	}{
		{"ADD", "0", func(p pod) ([]byte, error) { return p.call("ADD") }},
		{"ADD", "7", func(p pod) ([]byte, error) { p.keys = `"qeues": 1,`; return p.call("ADD") }},
		{"ADD", "8", func(p pod) ([]byte, error) { p.id += "x"; p.netns = "/run/netns/none"; return p.call("ADD") }},
		{"ADD", "102", func(p pod) ([]byte, error) { return p.call("ADD") }},
		{"DEL", "0", func(p pod) ([]byte, error) { return p.call("DEL") }},
		{"STATUS", "0", func(p pod) ([]byte, error) { return p.call("STATUS") }},
	}
	for _, c := range calls {
		for _, p := range pods {
			all.Go(func() {
				if out, err := c.call(*p); (err == nil) != (c.code == "0") {
					t.Errorf("%s: want code %s, got %v: %s", c.verb, c.code, err, out)
				}
			})
		}
		all.Wait()
	}
	s := n.scrape()
	total := 0.0
	for _, m := range s["tapir_cni_call_duration_seconds"].GetMetric() {
		total += float64(m.GetHistogram().GetSampleCount())
		if sum := m.GetHistogram().GetSampleSum(); sum <= 0 || sum > patience.Seconds()*processes {
			t.Errorf("want durations of calls, got %g s in all", sum)
		}
	}
	if total != float64(len(calls)*processes) {
		t.Errorf("want %d calls, got %g", len(calls)*processes, total)
	}
	for _, c := range calls {
		if got, err := s.value("tapir_cni_call_duration_seconds", "verb="+c.verb, "code="+c.code); err != nil || got != processes {
			t.Errorf("%s %s: want %d, got %g, %v", c.verb, c.code, processes, got, err)
		}
	}
}

// A call whose count cannot be kept is as good as any other; one that is refused before its configuration is read counts in the default folder.
func TestACallDoesNotNeedItsCount(t *testing.T) {
	requireNode(t)
	n := start(t, Config{})
	if err := os.MkdirAll("/run/tapir/calls/in the way", 0o755); err != nil {
		t.Fatal(err)
	}
	p := add(t, "")
	if info, err := os.Stat("/run/tapir/calls"); err != nil || !info.IsDir() {
		t.Fatalf("want the folder that is in the way, got %v, %v", info, err)
	}
	n.eventually(func(s scraped) error { // the file that is no file is told of
		if got, err := s.value("tapir_agent_sample_problems"); err != nil || got != 1 || len(s["tapir_cni_call_duration_seconds"].GetMetric()) != 0 {
			return fmt.Errorf("want one problem and no calls, got %g, %w", got, err)
		}
		return nil
	})
	if err := os.RemoveAll("/run/tapir/calls"); err != nil {
		t.Fatal(err)
	}
	wrong := *p
	wrong.keys = `"cniVersion": "9.9.9",` // the specification's own check refuses it
	if _, err := wrong.call("CHECK"); err == nil {
		t.Error("want an error")
	}
	if got, err := n.scrape().value("tapir_cni_call_duration_seconds", "verb=CHECK", "code=1"); err != nil || got != 1 {
		t.Errorf("want one call, got %g, %v", got, err)
	}
}

// Scrapers at once, while attachments come, are opened and go: each scrape is whole and right in itself.
func TestScrapesWhileAttachmentsComeAndGo(t *testing.T) {
	requireNode(t)
	stays := add(t, "")
	n := start(t, Config{})
	stop := make(chan struct{})
	var load, scrapers sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for range 8 {
				p := newPod(t, "")
				p.cni("ADD")
				q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: 1, NAPI: true})
				if err != nil {
					t.Error(err)
				} else if err := q.Close(); err != nil {
					t.Error(err)
				}
				p.cni("DEL")
			}
		})
	}
	for range 3 {
		scrapers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s, err := scrape(n.url)
				if err == nil {
					err = stays.wants(map[string]float64{"tapir_tap_ring_frames": 1000, "tapir_attachment_netns_lost": 0})(s)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	load.Wait()
	close(stop)
	scrapers.Wait()
	n.eventually(func(s scraped) error {
		if got := len(s["tapir_attachment_info"].GetMetric()); got != 1 {
			return fmt.Errorf("want one attachment, got %d", got)
		}
		return nil
	})
}

// tapird itself: what it serves, and to whom.
func TestTapirdServes(t *testing.T) {
	requireNode(t)
	add(t, "")
	const at = "127.0.0.1:10999"
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapird"), "--metrics-bind-address", at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		_ = cmd.Process.Signal(unix.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	get := func(path, accept string) (int, []byte) {
		r, err := http.NewRequest("GET", "http://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", accept)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, nil
		}
		defer answer.Body.Close()
		body := io.Reader(answer.Body)
		if accept == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, text
	}
	var ready struct {
		Ready, Picture bool
		Parts          []Part
	}
	var text []byte
	for until := time.Now().Add(patience); !ready.Ready && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		var code int
		code, text = get("/readyz", "")
		if code != 0 {
			if err := json.Unmarshal(text, &ready); err != nil || ready.Ready != (code == http.StatusOK) {
				t.Fatalf("%d, %v: %s", code, err, text)
			}
		}
	}
	running := map[string]bool{}
	for _, p := range ready.Parts {
		running[p.Name] = p.Running
	}
	if !ready.Ready || !running["watch"] || !running["measure"] || !running["metrics"] {
		t.Errorf("want it ready, got %s", text)
	}
	if code, body := get("/healthz", ""); code != http.StatusOK || string(body) != "ok\n" {
		t.Errorf("/healthz: got %d, %s", code, body)
	}
	if code, _ := get("/debug/pprof/", ""); code != http.StatusNotFound {
		t.Errorf("want no pprof without its flag, got %d", code)
	}
	_, text = get("/metrics", "gzip")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil || all["tapir_attachment_info"] == nil || all["tapir_agent_part_running"] == nil || all["process_resident_memory_bytes"] == nil {
		t.Errorf("got %v, %v", slices.Sorted(maps.Keys(all)), err)
	}
}

// Where it cannot serve it says so at once, and does nothing else.
func TestWhereTapirdCannotServe(t *testing.T) {
	requireNode(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		at, want string
		code     int
	}{
		{taken.Addr().String(), "address already in use; choose another by --metrics-bind-address", 1},
		{"127.0.0.1", `metricsBindAddress: want an address and a port as in "127.0.0.1:10177"`, 2},
		{"127.0.0.1:0", "metricsBindAddress: want an address and a port", 2},
		{"metrics.example:80", "metricsBindAddress: want an IP address", 2},
	} {
		cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapird"), "--metrics-bind-address", tt.at)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: want exit code %d and %q, got %v: %s", tt.at, tt.code, tt.want, err, out)
		}
	}
}
