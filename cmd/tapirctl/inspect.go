package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// inspected is everything that is known of one attachment, as "inspect -o json" prints it.
type inspected struct {
	Record   state.Attachment `json:"record"`
	StateDir string           `json:"stateDir"`
	Held     bool             `json:"held"` // an ADD or DEL of it is running
	Lease    *state.Lease     `json:"lease,omitempty"`
	DAN      json.RawMessage  `json:"dan,omitempty"` // Kata's file

	Wrong    []finding `json:"wrong"`    // what does not work, and what works with less
	Findings []finding `json:"findings"` // all, as doctor has them

	TAP      *links.Link    `json:"tap,omitempty"` // with counters
	PodEnd   *links.Link    `json:"podEnd,omitempty"`
	HostEnd  *links.Link    `json:"hostEnd,omitempty"`
	NAPI     *measure.NAPI  `json:"napi,omitempty"`
	Counters *page.Counters `json:"counters,omitempty"`
	Path     *page.Path     `json:"path,omitempty"`

	Devices  map[string]deviceView   `json:"devices"` // by role: addresses, neighbours, routes
	Queues   []queueRow              `json:"queues"`
	Entries  map[string]xdp.Endpoint `json:"mapEntries"` // of map endpoints, by device
	Shortcut *xdpRow                 `json:"shortcut,omitempty"`

	Changes   []journal.Change `json:"changes"`   // settings that tapird changed
	Decisions []page.Decision  `json:"decisions"` // of tapird, where it answers
	Tapird    string           `json:"tapird"`    // "answers", or why not

	Problems []string `json:"problems,omitempty"` // what could not be looked at
}

func newInspect(o *options) *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "inspect CONTAINER-ID[/IFNAME]",
		Short: "Show everything known of one attachment, and what looks wrong",
		Long: `Show what is recorded of an attachment and what the kernel has of it: devices in both network namespaces, programs, map entries, queues
and who holds them, settings and who changed them, leases, counters, Kata's file, and what tapird decided, where it answers. What is wrong
comes first, with what to do about it. Exits 3 when something does not work.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			rec, err := find(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			sample, err := takeOne(cmd.Context(), o)
			v := inspectAttachment(cmd.Context(), o, rec, sample, address)
			v.problem(err)
			if o.output == "json" {
				err = printJSON(cmd.OutOrStdout(), v)
			} else {
				err = v.print(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			for _, f := range v.Wrong {
				if f.Verdict == bad {
					return errFindings
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "page-address", page.DefaultAddress, "where tapird serves its page")
	return cmd
}

// takeOne is one sample of the node.
func takeOne(ctx context.Context, o *options) (*measure.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	s := startSampling(ctx, o)
	defer s.close()
	return s.take()
}

const samplePatience = 30 * time.Second

func (v *inspected) problem(err error) {
	if err != nil {
		v.Problems = append(v.Problems, err.Error())
	}
}

// inspectAttachment looks at everything; what could not be looked at is among the problems. sample may be nil.
func inspectAttachment(ctx context.Context, o *options, rec recorded, sample *measure.Sample, address string) *inspected {
	v := &inspected{
		Record: rec.Attachment, StateDir: rec.dir, Held: state.Held(rec.dir, rec.Key), Wrong: []finding{}, Findings: []finding{},
		Devices: map[string]deviceView{}, Queues: []queueRow{}, Entries: map[string]xdp.Endpoint{}, Changes: []journal.Change{}, Decisions: []page.Decision{},
	}
	v.fromState(ctx, rec)
	v.findings(ctx, o, rec)
	if sample != nil {
		v.measured(sample, rec)
	}
	v.devices(rec.Attachment)
	v.programs(o, rec.Attachment)
	reader := newQueueReader()
	defer reader.close() //nolint:errcheck // it was only read
	rows, err := reader.rows([]recorded{rec})
	v.problem(err)
	v.Queues = append(v.Queues, rows...)
	if shortcuts, err := xdpRows(o, []recorded{rec}); err != nil {
		v.problem(err)
	} else if len(shortcuts) == 1 {
		v.Shortcut = &shortcuts[0]
	}
	changes, err := readChanges(o, rec.Key)
	v.problem(err)
	v.Changes = append(v.Changes, changes...)
	v.Tapird = "answers"
	if v.Decisions, err = askDecisions(ctx, address, rec); err != nil {
		v.Tapird, v.Decisions = err.Error(), []page.Decision{}
	}
	return v
}

func (v *inspected) fromState(ctx context.Context, rec recorded) {
	v.problem(state.New(state.Config{Dir: rec.dir}).View(ctx, func(tx *state.Tx) error {
		v.Lease = nil
		l, ok, err := tx.Lease(rec.Key)
		if ok {
			v.Lease = &l
		}
		return err
	}))
	if rec.DAN == "" {
		return
	}
	data, err := os.ReadFile(rec.DAN)
	switch {
	case err != nil:
		v.problem(err)
	case !json.Valid(data):
		v.problem(fmt.Errorf("%s is no JSON", rec.DAN))
	default:
		v.DAN = data
	}
}

// findings are doctor's of this attachment.
func (v *inspected) findings(ctx context.Context, o *options, rec recorded) {
	v.Findings = append(v.Findings, inspectOne(o, rec))
	one := *o
	one.stateDirs = []string{rec.dir}
	name := rec.ContainerID + "/" + rec.IfName
	for _, look := range []func(context.Context, *options, string) ([]finding, error){queueFindings, shortcutFindings} {
		list, err := look(ctx, &one, name)
		v.problem(err)
		v.Findings = append(v.Findings, list...)
	}
	for _, f := range v.Findings {
		if f.Verdict != good {
			v.Wrong = append(v.Wrong, f)
		}
	}
}

func (v *inspected) measured(s *measure.Sample, rec recorded) {
	for _, a := range s.Attachments {
		if a.Key != rec.Key || a.Dir != rec.dir {
			continue
		}
		counters, path := page.CountersOf(a), page.PathOf(a)
		v.TAP, v.PodEnd, v.HostEnd, v.NAPI, v.Counters, v.Path = a.TAP, a.Pod, a.Host, &a.NAPI, &counters, &path
		if counters.RingDrops > 0 {
			v.Wrong = append(v.Wrong, finding{"drops of " + rec.Key.String(), limited, fmt.Sprintf("%d frames to the guest found no room in the ring, or no queue", counters.RingDrops),
				"the guest reads too slowly, or no VMM was attached; tapird's tuner grows the ring where drops go on"})
		}
		if counters.Refused > 0 {
			v.Wrong = append(v.Wrong, finding{"refused of " + rec.Key.String(), limited, fmt.Sprintf("%d frames of the guest were refused", counters.Refused), "the path below has the reasons"})
		}
	}
}

// programs are the map entries of the attachment's devices.
func (v *inspected) programs(o *options, a state.Attachment) {
	if a.Programs == "" {
		return
	}
	progs, err := xdp.OpenVersion(o.bpffs, a.Programs)
	if err != nil {
		v.problem(err)
		return
	}
	defer progs.Close()
	for _, d := range []state.Device{a.TAP, a.Pod, a.Host} {
		if d.Index == 0 {
			continue
		}
		if e, err := progs.Lookup(uint32(d.Index)); err == nil { // not every device has one
			v.Entries[d.Name] = e
		}
	}
}

// readChanges reads the journals of tapird, and leaves the files alone whatever is in them.
func readChanges(o *options, key state.Key) ([]journal.Change, error) {
	var list []journal.Change
	for _, dir := range o.stateDirs {
		data, err := os.ReadFile(filepath.Join(dir, journal.File))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var content struct{ Changes []journal.Change }
		if err == nil {
			err = json.Unmarshal(data, &content)
		}
		if err != nil {
			return list, fmt.Errorf("read the journal in %s: %w", dir, err)
		}
		for _, c := range content.Changes {
			if c.Object == key.String() {
				list = append(list, c)
			}
		}
	}
	return list, nil
}

// askDecisions asks tapird's page what was decided of the attachment.
func askDecisions(ctx context.Context, address string, rec recorded) ([]page.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	u := url.URL{Scheme: "http", Host: address, Path: "/api/v1/attachments/" + rec.Key.String(), RawQuery: url.Values{"stateDir": {rec.dir}}.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return nil, fmt.Errorf("does not answer: %w", err)
	}
	defer answer.Body.Close()
	var v struct {
		Decisions []page.Decision
		Error     string
	}
	if err := json.NewDecoder(answer.Body).Decode(&v); err != nil {
		return nil, fmt.Errorf("what answers at %s is no tapird: %w", address, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %s: %s", answer.Status, v.Error)
	}
	return v.Decisions, nil
}
