package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
)

// sampling takes samples of the node in this process, as tapird does in its own: no tapird is needed, and root is.
type sampling struct {
	*measure.Sampler
	ctx   context.Context // its cause is the error of what failed
	stop  context.CancelCauseFunc
	parts sync.WaitGroup
}

// startSampling begins; stop it with close.
func startSampling(ctx context.Context, o *options) *sampling {
	quiet := slog.New(slog.DiscardHandler)
	w := watch.New(watch.Config{StateDirs: o.stateDirs, Logger: quiet})
	s := &sampling{Sampler: measure.New(measure.Config{Watch: w, StateDirs: o.stateDirs, BPFFS: o.bpffs, Logger: quiet})}
	s.ctx, s.stop = context.WithCancelCause(ctx)
	for _, run := range []func(context.Context) error{w.Run, s.Run} {
		s.parts.Go(func() {
			if err := run(s.ctx); err != nil && s.ctx.Err() == nil {
				s.stop(err)
			}
		})
	}
	return s
}

// take is one sample, or why there is none: that of the part that failed.
func (s *sampling) take() (*measure.Sample, error) {
	sample, err := s.Sample(s.ctx)
	if cause := context.Cause(s.ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("take a sample of the node: %w; it needs root", err)
	}
	return sample, nil
}

func (s *sampling) close() {
	s.stop(nil)
	s.parts.Wait()
}
