package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// still is a sample that does not change.
type still struct{ s *measure.Sample }

func (s still) Sample(context.Context) (*measure.Sample, error) { return s.s, nil }

// crowd is a sample of many attachments, a third of them open.
func crowd(count int) *measure.Sample {
	zero := 0
	s := &measure.Sample{}
	for i := range count {
		key := state.Key{Network: "pods", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
		record := state.Attachment{Key: key, Status: state.Ready, PodNamespace: fmt.Sprintf("team-%d", i%20), PodName: fmt.Sprintf("web-7d4b9c6f5d-%05x", i),
			Placement: "pod", VMM: "generic", TAP: state.Device{Name: "tap-eth0", Index: i + 10}}
		a := &measure.Attachment{Attachment: &watch.Attachment{ID: watch.ID{Dir: state.DefaultDir, Key: key}, Record: record, Netns: watch.NetnsThere}}
		a.TAP = &links.Link{Name: "tap-eth0", TxQueueLen: 1000, Stats: links.Stats{RxFrames: uint64(i) * 1e6, RxBytes: uint64(i) * 1e9}}
		a.NAPI = measure.NAPI{Threaded: &zero, FlushTimeout: &zero, DeferHardIRQs: &zero}
		a.Frames = map[xdp.Reason]xdp.Counter{xdp.ReasonToHost: {Frames: uint64(i) * 1e5}, xdp.ReasonARPAnswered: {Frames: 3}}
		if i%3 == 0 {
			a.Queues = []queueiter.Queue{{Attach: queueiter.Enabled, NAPI: true, Ring: 1000, Holders: []queueiter.Holder{{PID: 1, Comm: "qemu"}}}}
		}
		s.Attachments = append(s.Attachments, a)
	}
	return s
}

// What the exposition of a thousand attachments costs beside the sample, as Prometheus asks for it.
func BenchmarkScrapeOfAThousand(b *testing.B) {
	for _, accept := range []string{"gzip", "identity"} {
		b.Run(accept, func(b *testing.B) {
			h := New(Config{Watch: watch.New(watch.Config{}), Measure: still{crowd(1000)}}).Handler(false)
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("GET", "/metrics", nil)
				r.Header.Set("Accept-Encoding", accept)
				w := &discard{header: http.Header{}}
				h.ServeHTTP(w, r)
				b.ReportMetric(float64(w.size), "bytes")
			}
		})
	}
}

type discard struct {
	header http.Header
	size   int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(b []byte) (int, error) {
	d.size += len(b)
	return io.Discard.Write(b)
}
