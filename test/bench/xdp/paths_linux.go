package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// checkPaths says by which way the frames of the floods went, and is an error where tapir's own counters contradict.
func checkPaths(o options, pairs map[string]*pair) ([]string, error) {
	var lines []string
	var faults []error
	var rows []shortcutRow
	if pairs[shortcut] != nil || pairs[routed] != nil {
		var err error
		if rows, err = shortcutRows(o); err != nil {
			return nil, err
		}
	}
	for _, variant := range variantNames() {
		p := pairs[variant]
		if p == nil {
			continue
		}
		if p.total.frames > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d frames written, %d dropped at the TAP, %d reached the node's end of the veth",
				titles[variant], p.total.frames, p.total.tapDropped, p.total.host))
		}
		if variant != shortcut && variant != routed {
			continue
		}
		row, err := p.senderRow(rows)
		if err == nil {
			lines = append(lines, fmt.Sprintf("%s, by tapirctl xdp: mode %s, %d frames taken by the shortcut, %d passed, %d dropped", titles[variant], row.Mode, row.Taken, row.Passed, row.Dropped))
			err = row.check(variant, p.total.frames)
		}
		faults = append(faults, err)
	}
	return lines, errors.Join(faults...)
}

// A shortcutRow is an attachment in the output of "tapirctl xdp -o json".
type shortcutRow struct {
	ContainerID string `json:"containerID"`
	Mode        string `json:"mode"`
	Taken       uint64 `json:"taken"`
	Passed      uint64 `json:"passed"`
	Dropped     uint64 `json:"dropped"`
}

func shortcutRows(o options) ([]shortcutRow, error) {
	cmd := exec.Command(filepath.Join(o.bin, "tapirctl"), "xdp", "-o", "json")
	out, err := cmd.Output()
	if err != nil {
		var said []byte
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			said = exit.Stderr
		}
		return nil, fmt.Errorf("ask tapirctl xdp: %w: %s", err, strings.TrimSpace(string(said)))
	}
	var rows []shortcutRow
	if err := json.Unmarshal(out, &rows); err != nil {
		return nil, fmt.Errorf("read the output of tapirctl xdp: %w", err)
	}
	return rows, nil
}

// senderRow finds the row of the pair's sender.
func (p *pair) senderRow(rows []shortcutRow) (shortcutRow, error) {
	for _, row := range rows {
		if row.ContainerID == p.sender().id {
			return row, nil
		}
	}
	return shortcutRow{}, fmt.Errorf("tapirctl xdp shows no attachment of container %q", p.sender().id)
}

// check compares with the frames that were written in floods, of which some more were taken and a tenth may have been lost.
func (row shortcutRow) check(variant string, frames uint64) error {
	switch {
	case variant == shortcut && (row.Mode != "native" || row.Taken == 0 || row.Taken < frames-frames/10):
		return fmt.Errorf("%s: want mode native and most of %d frames taken by the shortcut, got mode %s and %d", titles[variant], frames, row.Mode, row.Taken)
	case variant == routed && (row.Mode != "off" || row.Taken > 0):
		return fmt.Errorf("%s: want mode off and no frame taken by the shortcut, got mode %s and %d", titles[variant], row.Mode, row.Taken)
	}
	return nil
}
