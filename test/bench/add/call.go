package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ifName is the CNI_IFNAME of every call.
const ifName = "eth0"

// A call is one run of a plugin.
type call struct {
	variant variant
	command string // CNI_COMMAND
	id      string // CNI_CONTAINERID
	netns   string // CNI_NETNS
	prev    []byte // the result of ADD, for DEL
	trace   bool
}

// outcome is what a call gave and how long its process took, from before fork to after wait.
type outcome struct {
	took   time.Duration
	stdout []byte
	stderr string
}

// do runs the plugin. The error carries what the plugin printed: CNI plugins report errors on stdout.
func (c call) do() (outcome, error) {
	stdin, err := c.variant.stdin(c.prev)
	if err != nil {
		return outcome{}, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.variant.plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=" + c.command,
		"CNI_CONTAINERID=" + c.id,
		"CNI_NETNS=" + c.netns,
		"CNI_IFNAME=" + ifName,
		"CNI_PATH=" + c.variant.path,
	}
	begin := time.Now()
	if c.trace {
		// The plugin takes the time of its exec from here and counts its start from then.
		cmd.Env = append(cmd.Env, "TAPIR_TRACE="+strconv.FormatInt(begin.UnixNano(), 10))
	}
	err = cmd.Run()
	o := outcome{took: time.Since(begin), stdout: stdout.Bytes(), stderr: stderr.String()}
	if err != nil {
		return o, fmt.Errorf("%s %s: %w: %s %s", c.command, c.variant.name, err, strings.TrimSpace(stdout.String()), strings.TrimSpace(o.stderr))
	}
	return o, nil
}
