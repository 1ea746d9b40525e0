package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// DefaultBind is where the metrics are by default: on the node alone. Nothing secret is among them, but the names of pods and what they move.
const DefaultBind = "127.0.0.1:10177"

const (
	maxScrapes    = 4 // at once; more get 503
	scrapeTimeout = 30 * time.Second
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	endPatience   = 3 * time.Second
)

// Handler serves /metrics, /healthz, /readyz and, where profiles is set, /debug/pprof.
func (e *Exporter) Handler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	// promhttp's own time limit would keep each answer in memory until it is whole.
	mux.Handle("GET /metrics", limited(gzipped(promhttp.HandlerForTransactional(e, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, DisableCompression: true}))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", e.ready)
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// limited keeps a scraper that does not read from holding what it asked for.
func limited(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A writer that knows no deadline is a test's.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTimeout))
		h.ServeHTTP(w, r)
	})
}

// ready says which parts run and are ready, and 503 while one is not or the picture of the node is not whole.
func (e *Exporter) ready(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Ready   bool   `json:"ready"`
		Picture bool   `json:"picture"` // of the node's attachments: it is whole
		Parts   []Part `json:"parts"`
	}{Parts: []Part{}}
	select {
	case <-e.c.Watch.Ready():
		answer.Picture = true
	default:
	}
	answer.Ready = answer.Picture
	if e.c.Parts != nil {
		answer.Parts = e.c.Parts()
	}
	for _, p := range answer.Parts {
		answer.Ready = answer.Ready && p.Ready()
	}
	w.Header().Set("Content-Type", "application/json")
	if !answer.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		e.c.Logger.Debug("who asked whether tapird is ready does not listen", "error", err)
	}
}

// Serve serves at l until ctx ends, and closes l.
func (e *Exporter) Serve(ctx context.Context, l net.Listener, profiles bool) error {
	s := &http.Server{Handler: e.Handler(profiles), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 1 << 14}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	// The parent has ended: what is being answered has its own time.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	err := s.Shutdown(last)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close() // a scraper that does not read
	}
	if err != nil {
		return fmt.Errorf("end the serving of metrics: %w", err)
	}
	return nil
}
