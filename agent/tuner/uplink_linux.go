package tuner

// Uplink is what a device of the node is to have while tapird runs.
type Uplink struct{}

const uplinkObject = "uplink/"

func (t *Tuner) tuneUplinks()                                      {}
func (t *Tuner) restoreUplinks(keep func(string) bool, why string) {}

// Validate calls add for each fault.
func (u Uplink) Validate(at string, add func(key, fault string)) {}
