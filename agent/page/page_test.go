package page

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// attached is an attachment with a VMM on its TAP.
func attached(id string) *measure.Attachment {
	key := state.Key{Network: "pods", ContainerID: id, IfName: "eth0"}
	r := state.Attachment{
		Key: key, Status: state.Ready, Placement: state.PlacementPod, PodName: "web", PodNamespace: "shop", GuestMAC: "02:00:00:00:00:01", MTU: 1400,
		TAP: state.Device{Name: "tap-eth0", Index: 2000001}, Pod: state.Device{Name: "eth0", Index: 2000002}, Host: state.Device{Name: "tpr1", Index: 2000003},
		Addresses: []state.Address{{Prefix: netip.MustParsePrefix("10.9.0.2/24")}}, XDP: state.XDP{Mode: "native"},
	}
	return &measure.Attachment{
		Attachment: &watch.Attachment{ID: watch.ID{Dir: state.DefaultDir, Key: key}, Record: r, Netns: watch.NetnsThere},
		TAP:        &links.Link{Name: "tap-eth0", Queues: 1, TxQueueLen: 1000, Stats: links.Stats{RxFrames: 100, RxBytes: 9000, TxFrames: 70, TxBytes: 7000, TxDropped: 5}},
		Pod:        &links.Link{Name: "eth0"},
		Host:       &links.Link{Name: "tpr1", Stats: links.Stats{RxFrames: 60, RxBytes: 6000, TxFrames: 50, TxBytes: 5000}},
		Frames: map[xdp.Reason]xdp.Counter{
			xdp.ReasonToHost: {Frames: 60, Bytes: 6000}, xdp.ReasonToGuest: {Frames: 50, Bytes: 5000}, xdp.ReasonARPAnswered: {Frames: 3, Bytes: 126},
			xdp.ReasonSpoofMAC: {Frames: 7, Bytes: 420}, xdp.ReasonVLAN: {},
		},
		Shortcut: map[xdp.ShortcutReason]xdp.Counter{
			xdp.ShortcutXDPToGuest: {Frames: 20, Bytes: 1500}, xdp.ShortcutTCToUplink: {Frames: 4, Bytes: 400}, xdp.ShortcutXDPLookedUp: {Frames: 90},
		},
		Queues: []queueiter.Queue{{Attach: queueiter.Enabled, NAPI: true, Thread: 77, Ring: 1000, Holders: []queueiter.Holder{{PID: 42, FD: 9, Comm: "vmm", Opened: queueiter.HandedOver}}}},
	}
}

// served is a page that shows these.
func served(t *testing.T, c Config, all ...*measure.Attachment) *httptest.Server {
	t.Helper()
	s := &measure.Sample{Time: time.Now(), Attachments: all, IPAM: []measure.Range{{Dir: state.DefaultDir, Range: "10.9.0.1-10.9.0.254", Size: 254, Leased: 3, Resting: 1}}}
	if c.Sample == nil {
		c.Sample = func(context.Context) (*measure.Sample, error) { return s, nil }
	}
	server := httptest.NewServer(New(c).Handler())
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, url string, status int, v any) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != status || r.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s: want status %d and JSON, got %d: %s", url, status, r.StatusCode, data)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v in %s", url, err, data)
	}
}

// Whoever comes by a name that somebody else's DNS may have given, or wants to write, gets nothing.
func TestOnlyReadersByTheNodesOwnNameAreAnswered(t *testing.T) {
	server := served(t, Config{}, attached("aaaa"))
	for _, c := range []struct {
		method, host, path string
		want               int
	}{
		{"GET", "", "/", 200},
		{"HEAD", "", "/api/v1/attachments", 200},
		{"GET", "localhost:10178", "/api/v1/node", 200},
		{"GET", "LOCALHOST", "/", 200},
		{"GET", "[::1]:10178", "/", 200},
		{"GET", "10.0.0.7", "/", 200},
		{"GET", "tapir.attacker.example", "/api/v1/attachments", 421},
		{"GET", "127.0.0.1.attacker.example:10178", "/", 421},
		{"GET", "localhost.attacker.example", "/", 421},
		{"POST", "", "/api/v1/attachments", 405},
		{"DELETE", "", "/api/v1/attachments/pods/aaaa/eth0", 405},
		{"OPTIONS", "", "/api/v1/node", 405},
		{"GET", "", "/api/v2/node", 404},
		{"GET", "", "/etc/passwd", 404},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		r.Header.Set("Origin", "http://attacker.example")
		a, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(a.Body)
		if a.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != c.want {
			t.Errorf("%s %s of host %q: want %d, got %d", c.method, c.path, c.host, c.want, a.StatusCode)
		}
		if a.StatusCode != 200 && strings.Contains(string(data), "aaaa") && !strings.Contains(c.path, "aaaa") {
			t.Errorf("%s %s of host %q: a refusal shows an attachment: %s", c.method, c.path, c.host, data)
		}
		for name := range a.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: want no CORS, got %s", c.path, name)
			}
		}
		if csp := a.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy: got %q", c.path, csp)
		}
	}
}

func TestTheListShowsCountersAsTheGuestSeesThem(t *testing.T) {
	plain := attached("bbbb")
	plain.Record.TAP, plain.Record.XDP, plain.TAP, plain.Shortcut, plain.Queues = state.Device{}, state.XDP{}, nil, nil, nil
	lost := attached("cccc")
	lost.Netns, lost.Why, lost.TAP, lost.Pod, lost.Host = watch.NetnsLost, errors.New("nothing is mounted there"), nil, nil, nil
	server := served(t, Config{Tuned: func(id watch.ID) (Tuned, bool) {
		return Tuned{Profile: "auto", Rule: "small"}, id.ContainerID == "aaaa"
	}},
		attached("aaaa"), plain, lost)
	var got struct{ Attachments []Attachment }
	get(t, server.URL+"/api/v1/attachments", 200, &got)
	if len(got.Attachments) != 3 {
		t.Fatalf("want three, got %+v", got)
	}
	want := []Counters{
		{FromFrames: 100, FromBytes: 9000, ToFrames: 70, ToBytes: 7000, RingDrops: 5, Refused: 7, Shortcut: 24},
		{FromFrames: 60, FromBytes: 6000, ToFrames: 50, ToBytes: 5000, Refused: 7},
		{Refused: 7, Shortcut: 24},
	}
	for i, w := range want {
		if diff := cmp.Diff(w, got.Attachments[i].Counters); diff != "" {
			t.Errorf("counters of %s (-want +got):\n%s", got.Attachments[i].ContainerID, diff)
		}
	}
	a := got.Attachments[0]
	if a.Pod != "shop/web" || a.Kind != "tap" || a.Attached != 1 || a.Ring != 1000 || a.Tuned == nil || a.Tuned.Rule != "small" || a.Queues[0].Holders[0].PID != 42 {
		t.Errorf("got %+v", a)
	}
	if p := got.Attachments[1]; p.Kind != "plain" || p.Device != "tpr1" || p.Tuned != nil {
		t.Errorf("plain pod: got %+v", p)
	}
	if l := got.Attachments[2]; l.Netns != "lost" || l.Why != "nothing is mounted there" {
		t.Errorf("lost one: got %+v", l)
	}
}

func TestTheNodeCountsItsAttachments(t *testing.T) {
	lost := attached("cccc")
	lost.Netns = watch.NetnsLost
	pending := attached("dddd")
	pending.Record.Status, pending.TAP = state.Pending, nil
	server := served(t, Config{Findings: func() []Finding { return []Finding{{What: "qdisc is gone", Result: "repaired"}} }}, attached("aaaa"), lost, pending)
	var got struct {
		Totals   Totals
		IPAM     []measure.Range
		Findings []Finding
		Node     struct{ Kernel string }
	}
	get(t, server.URL+"/api/v1/node", 200, &got)
	if diff := cmp.Diff(Totals{Attachments: 3, Ready: 2, Attached: 2, Lost: 1, Dropped: 5 + 7 + 5 + 7 + 7}, got.Totals); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	if len(got.IPAM) != 1 || got.IPAM[0].Leased != 3 || len(got.Findings) != 1 || got.Node.Kernel == "" {
		t.Errorf("got %+v", got)
	}
}

func TestThePathCountsEachHop(t *testing.T) {
	type hop struct {
		Kind                   string
		Frames, Dropped, Ended uint64
	}
	brief := func(way []Hop) (out []hop) {
		for _, h := range way {
			out = append(out, hop{h.Kind, h.Frames, h.Dropped, h.Ended})
		}
		return out
	}
	a := attached("aaaa")
	p := PathOf(a)
	for name, c := range map[string]struct {
		got  []Hop
		want []hop
	}{
		"to node":      {p.ToNode, []hop{{"guest", 0, 0, 0}, {"tap", 100, 0, 0}, {"program", 60, 7, 3}, {"veth", 60, 0, 0}, {"node", 0, 0, 0}}},
		"to guest":     {p.ToGuest, []hop{{"node", 0, 0, 0}, {"veth", 50, 0, 0}, {"program", 50, 0, 0}, {"tap", 70, 5, 0}, {"guest", 0, 0, 0}}},
		"shortcut out": {p.ShortcutOut, []hop{{"guest", 0, 0, 0}, {"tap", 100, 0, 0}, {"shortcut", 24, 0, 0}, {"others", 20, 0, 0}, {"uplink", 4, 0, 0}}},
		// 70 sent and 5 dropped, of which 50 came from pod_ingress and 3 were answers.
		"shortcut in": {p.ShortcutIn, []hop{{"shortcut", 22, 0, 0}, {"tap", 70, 5, 0}, {"guest", 0, 0, 0}}},
	} {
		if diff := cmp.Diff(c.want, brief(c.got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if name := p.ToNode[0].Name; name != "vmm, pid 42" {
		t.Errorf("guest: got %q", name)
	}
	a.Record.XDP.Mode = ""
	if p := PathOf(a); p.ShortcutOut != nil || p.ShortcutIn != nil {
		t.Errorf("one without a part in the shortcut: got %+v", p)
	}
	a.Record.Placement, a.Record.Pod, a.Record.Host = state.PlacementHost, state.Device{}, state.Device{}
	if p := PathOf(a); len(p.ToNode) != 4 || len(p.ToGuest) != 3 {
		t.Errorf("TAP on the host: got %+v", p)
	}
}

func TestOneAttachmentIsFoundByItsKey(t *testing.T) {
	twin := attached("aaaa")
	twin.Dir = "/run/other"
	name := "pods/aaaa/eth0"
	server := served(t, Config{
		Changes: func(object string) []journal.Change {
			return []journal.Change{{Object: object, Setting: "gro_flush_timeout"}}
		},
		Decisions: func() []Decision {
			return []Decision{{Attachment: name, StateDir: "/run/tapir", Why: "small frames"}, {Attachment: name, StateDir: "/run/other"}, {Why: "uplink"}}
		},
	}, attached("aaaa"), twin, attached("bbbb"))
	var failure struct{ Error string }
	get(t, server.URL+"/api/v1/attachments/"+name, 409, &failure)
	if !strings.Contains(failure.Error, "want one, got 2; name its stateDir") {
		t.Errorf("got %q", failure.Error)
	}
	get(t, server.URL+"/api/v1/attachments/pods/zzzz/eth0", 404, &failure)
	var got struct {
		Attachment Attachment
		Frames     []Reason
		Changes    []journal.Change
		Decisions  []Decision
	}
	get(t, server.URL+"/api/v1/attachments/"+name+"?stateDir=/run/tapir", 200, &got)
	if got.Attachment.Dir != "/run/tapir" || len(got.Changes) != 1 || got.Changes[0].Object != name || len(got.Decisions) != 1 || got.Decisions[0].Why != "small frames" {
		t.Errorf("got %+v", got)
	}
	want := []string{"to_host", "to_guest", "spoof_mac", "arp_answered"} // most frames first, none of 0
	var names []string
	for _, r := range got.Frames {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	var decisions struct{ Decisions []Decision }
	get(t, server.URL+"/api/v1/decisions?limit=2", 200, &decisions)
	if len(decisions.Decisions) != 2 {
		t.Errorf("want two, got %+v", decisions)
	}
	get(t, server.URL+"/api/v1/decisions?limit=x", 400, &failure)
}

func TestWithoutASampleTheReasonIsTold(t *testing.T) {
	server := served(t, Config{Sample: func(context.Context) (*measure.Sample, error) { return nil, measure.ErrNotRunning }})
	var failure struct{ Error string }
	get(t, server.URL+"/api/v1/attachments", 503, &failure)
	if !strings.Contains(failure.Error, measure.ErrNotRunning.Error()) {
		t.Errorf("got %q", failure.Error)
	}
}

// More than it answers at once are told to come again, and nobody waits for them.
func TestTooManyRequestsAreTurnedAway(t *testing.T) {
	begun, release := make(chan struct{}, maxRequests), make(chan struct{})
	server := served(t, Config{Sample: func(context.Context) (*measure.Sample, error) {
		begun <- struct{}{}
		<-release
		return &measure.Sample{Time: time.Now()}, nil
	}})
	done := make(chan error, maxRequests)
	for range maxRequests {
		go func() {
			r, err := http.Get(server.URL + "/api/v1/node")
			if err == nil {
				err = r.Body.Close()
			}
			done <- err
		}()
	}
	for range maxRequests {
		<-begun
	}
	var failure struct{ Error string }
	get(t, server.URL+"/api/v1/node", 503, &failure)
	close(release)
	for range maxRequests {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var ok map[string]any
	get(t, server.URL+"/api/v1/node", 200, &ok)
}

// An address that somebody else has is tried again; the page comes when it is free.
func TestThePageWaitsForItsAddress(t *testing.T) {
	first := New(Config{Address: "127.0.0.1:0", Sample: func(context.Context) (*measure.Sample, error) { return &measure.Sample{Time: time.Now()}, nil }})
	first.Listen()
	address := first.waiting.Addr().String()
	second := New(Config{Address: address, Sample: first.c.Sample})
	second.Listen()
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("want the address in use, got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	var got map[string]any
	get(t, "http://"+address+"/api/v1/node", 200, &got)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	second.Listen()
	go func() { ended <- second.Run(ctx) }()
	get(t, "http://"+address+"/api/v1/node", 200, &got)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
