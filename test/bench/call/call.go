// Package call runs CNI plugins as a runtime does, by exec with the configuration on standard input, and times the process. It is what the
// benchmarks of plugins share.
package call

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// IfName is the CNI_IFNAME of every call.
const IfName = "eth0"

// Call is one run of a plugin.
type Call struct {
	Name    string // of what is measured, in errors
	Plugin  string // path of the binary
	Path    string // CNI_PATH
	Command string // CNI_COMMAND
	ID      string // CNI_CONTAINERID
	Netns   string // CNI_NETNS
	Config  map[string]any
	Prev    []byte // the result of ADD, for DEL; may be nil
	Trace   bool   // tapir: print where the time goes
}

// Outcome is what a call gave and how long its process took, from before fork to after wait.
type Outcome struct {
	Took   time.Duration
	Stdout []byte
	Stderr string
}

// Do runs the plugin. The error carries what the plugin printed: CNI plugins report errors on standard output.
func (c Call) Do() (Outcome, error) {
	stdin, err := c.stdin()
	if err != nil {
		return Outcome{}, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.Plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=" + c.Command,
		"CNI_CONTAINERID=" + c.ID,
		"CNI_NETNS=" + c.Netns,
		"CNI_IFNAME=" + IfName,
		"CNI_PATH=" + c.Path,
	}
	begin := time.Now()
	if c.Trace {
		// The plugin takes the time of its exec from here and counts its start from then.
		cmd.Env = append(cmd.Env, "TAPIR_TRACE="+strconv.FormatInt(begin.UnixNano(), 10))
	}
	err = cmd.Run()
	o := Outcome{Took: time.Since(begin), Stdout: stdout.Bytes(), Stderr: stderr.String()}
	if err != nil {
		return o, fmt.Errorf("%s %s: %w: %s %s", c.Command, c.Name, err, strings.TrimSpace(stdout.String()), strings.TrimSpace(o.Stderr))
	}
	return o, nil
}

// stdin is the configuration as a runtime writes it, with the previous result at DEL.
func (c Call) stdin() ([]byte, error) {
	if c.Prev == nil {
		return json.Marshal(c.Config)
	}
	config := maps.Clone(c.Config)
	config["prevResult"] = json.RawMessage(c.Prev)
	return json.Marshal(config)
}
