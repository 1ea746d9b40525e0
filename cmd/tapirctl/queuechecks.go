package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
)

// queueFindings says of each attachment which of its queues run NAPI, and why the others do not. Nothing of it is bad: a queue without
// NAPI works.
func queueFindings(ctx context.Context, o *options, only string) ([]finding, error) {
	var args []string
	if only != "" {
		args = append(args, only)
	}
	all, err := chosen(ctx, o, args)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(a recorded) bool { return a.TAP.Name == "" || a.Status != state.Ready })
	if len(all) == 0 {
		return nil, nil
	}
	reader := newQueueReader()
	defer reader.close() //nolint:errcheck // it was only read
	if reader.why != nil {
		return []finding{{"queues", limited, reader.why.Error(), `"tapirctl queues" shows NAPI as unknown; the rest of tapir does not need it`}}, nil
	}
	rows, err := reader.rows(all)
	if err != nil {
		return nil, err
	}
	return explainAll(rows), nil
}

// explainAll gives one finding for the queues of an attachment that one process holds and that are alike.
func explainAll(rows []queueRow) []finding {
	type alike struct {
		key    state.Key
		pid    int
		napi   string
		opened string
	}
	groups := make(map[alike][]queueRow)
	var order []alike
	for _, r := range rows {
		k := alike{r.Key, r.PID, r.NAPI, r.Opened}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	var list []finding
	for _, k := range order {
		list = append(list, explainQueues(groups[k]))
	}
	return list
}

// explainQueues is the finding of queues that are alike.
func explainQueues(rows []queueRow) finding {
	r := rows[0]
	name := "queues of " + r.Key.String()
	var numbers []string
	for _, row := range rows {
		if row.Queue != nil {
			numbers = append(numbers, strconv.Itoa(*row.Queue))
		}
	}
	numbers = slices.Compact(numbers) // one queue may have several descriptors
	which := "queue " + strings.Join(numbers, ", ")
	if len(numbers) > 1 {
		which = "queues " + strings.Join(numbers, ", ")
	}
	what := fmt.Sprintf("%s of pid %d (%s)", which, r.PID, r.Program)
	switch {
	case r.State == notOpen:
		return finding{name, good, "no VMM has opened " + r.TAP, ""}
	case r.NAPI == yes:
		return finding{name, good, what + ": NAPI", ""}
	case r.NAPI == no && r.noNAPI:
		return finding{name, good, what + ": no NAPI, as the configuration says", ""}
	case r.NAPI == unknown:
		return finding{name, limited, strings.TrimSuffix(r.State+": "+r.Note, ": "), "NAPI is told of queues that a process holds"}
	}
	return finding{name, limited, what + ": no NAPI: " + whyNoNAPI(r), withoutNAPI(r)}
}

// withoutNAPI is what to do about a queue that runs without: the first of the ways onto a queue that the VMM knows.
func withoutNAPI(r queueRow) string {
	const nothingLost = "; where the guest sends large frames (TSO) nothing is lost without"
	attachment := r.ContainerID + "/" + r.IfName
	supervised := fmt.Sprintf("start it as \"tapirctl exec --attachment %s -- VMM …\"", attachment)
	handed := fmt.Sprintf("start it as \"tapirctl fds --attachment %s -- VMM …\", with {fds} or {fd} among its arguments", attachment)
	profile, err := tap.ProfileOf(r.vmm)
	switch {
	case err != nil || profile.VMM == tap.Generic:
		return handed + "; where it takes no open queues " + supervised + nothingLost
	case profile.OwnTAP:
		return profile.Title + " opens its TAPs by name: " + supervised + ", with the runtime's shim for the VMM" + nothingLost
	case profile.FDs:
		return handed + nothingLost
	}
	return profile.Title + " takes no open queues: " + supervised + nothingLost
}

func whyNoNAPI(r queueRow) string {
	switch r.Opened {
	case "by name":
		return "it opened the TAP by name and did not ask for it"
	case "handed over":
		return fmt.Sprintf("pid %d opened it without", r.Opener)
	}
	return "it was opened without; by whom cannot be told any more"
}
