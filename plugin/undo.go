package plugin

import (
	"errors"
	"fmt"
)

// undo is a stack of steps that take back what an ADD did.
type undo []undoStep

type undoStep struct {
	what string
	fn   func() error
}

// push records how to take back what has just been done.
func (u *undo) push(what string, fn func() error) { *u = append(*u, undoStep{what, fn}) }

// run takes everything back, last done first, goes on after an error and joins the errors.
func (u *undo) run() error {
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		step := (*u)[i]
		if err := step.fn(); err != nil {
			errs = append(errs, fmt.Errorf("take back %s: %w", step.what, err))
		}
	}
	*u = nil
	return errors.Join(errs...)
}
