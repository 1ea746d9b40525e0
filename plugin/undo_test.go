package plugin

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUndoRunsBackwardsAndGoesOnAfterAnError(t *testing.T) {
	var u undo
	var ran []string
	fault := errors.New("no")
	for _, what := range []string{"a", "b", "c"} {
		u.push(what, func() error {
			ran = append(ran, what)
			if what == "b" {
				return fault
			}
			return nil
		})
	}
	err := u.run()
	if diff := cmp.Diff([]string{"c", "b", "a"}, ran); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if !errors.Is(err, fault) || !strings.Contains(err.Error(), "take back b") {
		t.Errorf("want the error of b by name, got %v", err)
	}
	if err := u.run(); err != nil || len(ran) != 3 {
		t.Errorf("a second run did something: %v, %v", ran, err)
	}
}
