package measure

import (
	"encoding/json"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// MarshalJSON gives what was read with the attachment's names and states, and counters by the reason's name.
func (a *Attachment) MarshalJSON() ([]byte, error) {
	type read Attachment // its fields, and not this method
	frames := make(map[string]xdp.Counter, len(a.Frames))
	for r, c := range a.Frames {
		frames[r.String()] = c
	}
	var shortcut map[string]xdp.Counter
	for r, c := range a.Shortcut {
		if shortcut == nil {
			shortcut = map[string]xdp.Counter{}
		}
		shortcut[r.String()] = c
	}
	why := ""
	if a.Why != nil {
		why = a.Why.Error()
	}
	return json.Marshal(struct {
		watch.ID
		Status     state.Status `json:"status"`
		Netns      string       `json:"netns"`
		NetnsState watch.Netns  `json:"netnsState"`
		Why        string       `json:"why,omitempty"`
		*read
		Frames    map[string]xdp.Counter `json:"frames"`
		Shortcut  map[string]xdp.Counter `json:"shortcut,omitempty"`
		RingDrops uint64                 `json:"ringDrops"`
	}{a.ID, a.Record.Status, a.Record.Netns, a.Netns, why, (*read)(a), frames, shortcut, a.RingDrops()})
}

// MarshalJSON adds why queues cannot be told apart.
func (s *Sample) MarshalJSON() ([]byte, error) {
	type read Sample
	why := ""
	if s.QueuesErr != nil {
		why = s.QueuesErr.Error()
	}
	return json.Marshal(struct {
		*read
		QueuesError string `json:"queuesError,omitempty"`
	}{(*read)(s), why})
}
