package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/agent/tuner"
	"github.com/tapir-cni/tapir/agent/watch"
)

// pagePart serves the status page. A port that is taken is no reason to end: the node can do without the page, and it is tried again.
func (a *Agent) pagePart() part {
	if a.c.Page == "" {
		return part{name: "page"}
	}
	p := page.New(page.Config{
		Address: a.c.Page, Sample: a.measure.Sample, Changes: a.journal.Of, Decisions: a.decisions, Tuned: a.tuned, Findings: a.findings, Logger: a.log,
	})
	return part{
		name: "page",
		open: func() error {
			p.Listen()
			return nil
		},
		run: p.Run,
		plan: func(_ context.Context, out io.Writer) error {
			_, err := fmt.Fprintf(out, "page: serve it at http://%s/\n", a.c.Page)
			return err
		},
	}
}

// decisions are the tuner's, as the page shows them.
func (a *Agent) decisions() []page.Decision {
	all := a.tuner.Decisions()
	list := make([]page.Decision, 0, len(all))
	for _, d := range all {
		one := page.Decision{
			Time: d.Time, Part: tuner.Part, StateDir: d.Attachment.Dir, Device: d.Device, Kind: string(d.Kind), From: d.From, To: d.To, Why: d.Why,
			Result: string(d.Result), Error: d.Error,
		}
		if d.Attachment.ContainerID != "" {
			one.Attachment = d.Attachment.Key.String()
		}
		for _, s := range d.Settings {
			one.Settings = append(one.Settings, fmt.Sprintf("%s %s → %s", s.Name, s.Before, s.After))
		}
		list = append(list, one)
	}
	return list
}

func (a *Agent) tuned(id watch.ID) (page.Tuned, bool) {
	s, ok := a.tuner.State(id)
	return page.Tuned{Profile: s.Profile, Rule: s.Rule, Why: s.Why}, ok
}

// findings are the reconciler's.
func (a *Agent) findings() []page.Finding {
	all := a.mend.Findings()
	list := make([]page.Finding, 0, len(all))
	for _, f := range all {
		one := page.Finding{Object: f.Object, Kind: string(f.Kind), Time: f.Time, What: f.What, Result: string(f.Outcome)}
		if f.Thing != "" {
			one.What = f.Thing + ": " + f.What
		}
		if f.Error != "" {
			one.Result += ": " + f.Error
		}
		list = append(list, one)
	}
	return list
}
