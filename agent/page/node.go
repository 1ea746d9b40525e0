package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/version"
	"golang.org/x/sys/unix"
)

// identity is what does not change while tapird runs.
type identity struct {
	Name    string `json:"name"`    // the node's host name
	Kernel  string `json:"kernel"`  // release and machine
	Version string `json:"version"` // of tapird
}

func identify() identity {
	id := identity{Name: hostname(), Version: version.String()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		id.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	return id
}

// at is when an answer's numbers were read.
type at struct {
	Time   time.Time `json:"time"`
	Uptime float64   `json:"uptime"` // seconds since tapird began, by a clock that does not jump: rates are differences over it
}

func (p *Page) at(t time.Time) at { return at{Time: t, Uptime: t.Sub(p.began).Seconds()} }

// Totals are counts of attachments.
type Totals struct {
	Attachments int    `json:"attachments"`
	Ready       int    `json:"ready"`
	Attached    int    `json:"attached"` // with a VMM
	Lost        int    `json:"lost"`     // whose network namespace is gone
	Dropped     uint64 `json:"dropped"`  // frames, of all: ring full and refused
}

// nodeAnswer is /api/v1/node.
type nodeAnswer struct {
	at
	Node        identity        `json:"node"`
	Totals      Totals          `json:"totals"`
	IPAM        []measure.Range `json:"ipam"`
	Calls       []measure.Calls `json:"calls"`
	QueuesError string          `json:"queuesError,omitempty"`
	Problems    []string        `json:"problems,omitempty"`
	Findings    []Finding       `json:"findings,omitempty"`
}

func (p *Page) nodeStatus(w http.ResponseWriter, r *http.Request) {
	s, ok := p.sample(w, r)
	if !ok {
		return
	}
	a := nodeAnswer{at: p.at(s.Time), Node: p.node, IPAM: s.IPAM, Calls: s.Calls, Problems: s.Problems}
	if a.IPAM == nil {
		a.IPAM = []measure.Range{}
	}
	if a.Calls == nil {
		a.Calls = []measure.Calls{}
	}
	if s.QueuesErr != nil {
		a.QueuesError = s.QueuesErr.Error()
	}
	if p.c.Findings != nil {
		a.Findings = p.c.Findings()
	}
	for _, one := range s.Attachments {
		a.Totals.add(one)
	}
	answer(w, a)
}

func (t *Totals) add(a *measure.Attachment) {
	t.Attachments++
	if a.Ready() {
		t.Ready++
	}
	if a.TAP != nil && a.TAP.Queues > 0 {
		t.Attached++
	}
	if a.Netns.String() == "lost" {
		t.Lost++
	}
	c := CountersOf(a)
	t.Dropped += c.RingDrops + c.Refused
}

// sample gives one, or answers why not.
func (p *Page) sample(w http.ResponseWriter, r *http.Request) (*measure.Sample, bool) {
	s, err := p.c.Sample(r.Context())
	if err != nil {
		answerError(w, http.StatusServiceUnavailable, fmt.Errorf("%w: %w", errNoSample, err))
		return nil, false
	}
	return s, true
}

// decisions answers with those that are kept, or with the latest ?limit= of them.
func (p *Page) decisions(w http.ResponseWriter, r *http.Request) {
	list := []Decision{}
	if p.c.Decisions != nil {
		list = append(list, p.c.Decisions()...)
	}
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			answerError(w, http.StatusBadRequest, fmt.Errorf("limit: want a number, 0 or more, got %q", text))
			return
		}
		list = list[:min(n, len(list))]
	}
	answer(w, map[string]any{"decisions": list})
}

func (p *Page) index(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{"resources": []string{
		"/api/v1/node", "/api/v1/attachments", "/api/v1/attachments/{network}/{containerID}/{ifName}", "/api/v1/decisions",
	}})
}

// cached is the encoded list of a sample: however many ask, it is made once.
type cached struct {
	mu   sync.Mutex
	of   *measure.Sample
	data []byte
}

func (c *cached) get(s *measure.Sample, encode func() any) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == s {
		return c.data, nil
	}
	data, err := json.Marshal(encode())
	if err != nil {
		return nil, err
	}
	c.of, c.data = s, append(data, '\n')
	return c.data, nil
}
