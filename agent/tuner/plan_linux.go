package tuner

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tapir-cni/tapir/tap"
)

// Plan says what the tuner would do about each TAP that has a VMM, by a second of its traffic. It changes nothing. The watcher and the sampler run.
func (t *Tuner) Plan(ctx context.Context, out io.Writer) error {
	t.mu.Lock()
	o := t.o
	t.mu.Unlock()
	if _, err := fmt.Fprintf(out, "tuner: %s, profile %s\n", o.Mode, o.Profile); err != nil {
		return err
	}
	before, err := t.c.Measure.Sample(ctx)
	if err != nil {
		return err
	}
	was := map[string]tap.Traffic{} // frames and bytes so far
	vmms := 0
	for _, a := range before.Attachments {
		if a.TAP != nil && a.TAP.Queues > 0 {
			vmms++
			was[a.ID.String()] = tap.Traffic{FramesPerSecond: float64(a.TAP.Stats.RxFrames), BytesPerFrame: float64(a.TAP.Stats.RxBytes)}
		}
	}
	if vmms == 0 {
		return nil // nothing to wait a second for
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := t.c.Measure.Sample(ctx)
	if err != nil {
		return err
	}
	span := after.Time.Sub(before.Time).Seconds()
	for _, a := range after.Attachments {
		w, ok := was[a.ID.String()]
		if !ok || a.TAP == nil {
			continue
		}
		name, why := o.Profiles.pick(a.Record.Profile, o.Profile, o.PodProfiles)
		if name == OffProfile || o.Mode == Off {
			fmt.Fprintf(out, "tuner: %s: leave it alone\n", a.ID)
			continue
		}
		profile, _ := o.Profiles.get(name)
		frames := float64(a.TAP.Stats.RxFrames) - w.FramesPerSecond
		traffic := tap.Traffic{MTU: a.TAP.MTU, FramesPerSecond: frames / span}
		if frames > 0 {
			traffic.BytesPerFrame = (float64(a.TAP.Stats.RxBytes) - w.BytesPerFrame) / frames
		}
		rule := tap.ChooseFrom(profile.rules(), traffic)
		if !runs(a) {
			why = "no queue runs NAPI, so there is nothing to set; " + why
		}
		if _, err := fmt.Fprintf(out, "tuner: %s: rule %s of profile %s for %.0f frames/s of %.0f bytes; %s%s\n",
			a.ID, rule.Name, name, traffic.FramesPerSecond, traffic.BytesPerFrame, why, rule.Why); err != nil {
			return err
		}
	}
	return nil
}
