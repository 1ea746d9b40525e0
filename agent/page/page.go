// Package page serves what tapird knows of the node: a page for people at /, and the JSON behind it at /api/v1/ for programs (docs/page.md).
// It only reads, and takes a sample when somebody asks for one.
package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
)

// DefaultAddress is where tapird serves the page if nobody says otherwise: this machine alone.
const DefaultAddress = "127.0.0.1:10178"

// Config is what a [Page] is made of. Sample must be there; what else is nil is not shown.
type Config struct {
	Address string // "host:port"; [DefaultAddress] where empty

	Sample    func(context.Context) (*measure.Sample, error)
	Changes   func(object string) []journal.Change // settings of an attachment that parts of tapird changed
	Decisions func() []Decision                    // the latest, newest first
	Tuned     func(watch.ID) (t Tuned, ok bool)    // what the tuner thinks of a TAP
	Findings  func() []Finding                     // what is not as it should be

	Logger *slog.Logger
}

// Decision is one thing that a part of tapird decided.
type Decision struct {
	Time       time.Time `json:"time"`
	Part       string    `json:"part"`               // "tuner"
	Attachment string    `json:"attachment"`         // network/container id/ifname; empty: the node's
	StateDir   string    `json:"stateDir,omitempty"` // of the attachment
	Device     string    `json:"device,omitempty"`   // name
	Kind       string    `json:"kind"`               // as the part calls it
	From       string    `json:"from,omitempty"`     //
	To         string    `json:"to,omitempty"`       //
	Why        string    `json:"why"`                //
	Settings   []string  `json:"settings,omitempty"` // "gro_flush_timeout 0 → 20000"
	Result     string    `json:"result"`             // "done", "failed", "dryRun"
	Error      string    `json:"error,omitempty"`    // why it failed
}

// Tuned is what the tuner thinks of one TAP.
type Tuned struct {
	Profile string `json:"profile"`
	Rule    string `json:"rule"`
	Why     string `json:"why,omitempty"` // of the rule
}

// Finding is one thing that is not as it should be, and what became of it.
type Finding struct {
	Object string    `json:"object"` // an attachment as network/container id/ifname, or what it is of the node
	Kind   string    `json:"kind"`
	Time   time.Time `json:"time"`   // when it became so
	What   string    `json:"what"`   // wanted and got
	Result string    `json:"result"` // "repaired", "reported", …
}

// Page serves. Its methods may be called by several goroutines at once, Run by one.
type Page struct {
	c       Config
	log     *slog.Logger
	began   time.Time // what "uptime" counts from
	node    identity
	list    cached
	waiting net.Listener // bound by Listen, for Run
}

// New makes a Page. It touches nothing.
func New(c Config) *Page {
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Page{c: c, log: c.Logger, began: time.Now(), node: identify()}
}

// Limits of the server. An answer is written as fast as it can be read, or not at all.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	answerTimeout  = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	goodbye        = 2 * time.Second
)

// Listen binds the address, while the process may bind a low port. It is for the beginning; where it fails Run tries again, and says why not: a
// node can do without the page.
func (p *Page) Listen() {
	l, err := net.Listen("tcp", p.c.Address)
	if err != nil {
		p.log.Warn("the status page has no address yet", "address", p.c.Address, "error", err)
		return
	}
	p.waiting = l
}

// Run serves until ctx ends. It may be run again.
func (p *Page) Run(ctx context.Context) error {
	l := p.waiting
	p.waiting = nil
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", p.c.Address); err != nil {
			return fmt.Errorf("serve the status page: %w", err)
		}
	}
	s := &http.Server{
		Handler: p.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	p.log.Info("status page", "address", l.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the status page: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	err := s.Shutdown(end)
	if errors.Is(err, context.DeadlineExceeded) { // who still reads is cut off
		err = s.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// hostname is the node's; empty where the kernel does not say.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
