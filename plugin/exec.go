package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"golang.org/x/sys/unix"
)

// The library's pkg/invoke would do this as well; since 1.3 it links OpenTelemetry, net/http and crypto/tls, a quarter of the
// binary and 0.4 ms of each start (docs/design/0002).

// busyTries is how often a plugin that is just being replaced ("text file busy") is started again.
const busyTries = 5

// execPlugin runs one verb of another plugin by the CNI protocol: found in CNI_PATH, the environment as ours but for
// CNI_COMMAND, the configuration on its stdin. It returns what the plugin wrote to stdout, or its error, which keeps the code.
func execPlugin(ctx context.Context, verb, name string, stdin []byte) ([]byte, error) {
	path, err := findPlugin(name, os.Getenv("CNI_PATH"))
	if err != nil {
		return nil, err
	}
	var stdout []byte
	for range busyTries {
		cmd := exec.CommandContext(ctx, path)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb)
		if stdout, err = cmd.Output(); !errors.Is(err, unix.ETXTBSY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err == nil {
		return stdout, nil
	}
	var told types.Error
	if json.Unmarshal(stdout, &told) == nil && told.Msg != "" {
		return nil, types.NewError(cmp.Or(told.Code, types.ErrInternal), told.Msg, told.Details)
	}
	return nil, fmt.Errorf("%s %s: %w; it wrote %q", verb, path, err, stdout)
}

// findPlugin finds a plugin in a list of folders, by name alone.
func findPlugin(name, folders string) (string, error) {
	if name != filepath.Base(name) || name == "." || name == ".." {
		return "", types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam.type: want the name of a plugin, got %q", name), "")
	}
	for _, dir := range filepath.SplitList(folders) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	hint := ""
	if jsonkeys.Nearest(name, []string{ipamType}) != "" {
		hint = fmt.Sprintf("; did you mean %q?", ipamType)
	}
	return "", types.NewError(types.ErrInvalidNetworkConfig,
		fmt.Sprintf("ipam.type: no plugin %q in CNI_PATH %s%s", name, strings.Join(filepath.SplitList(folders), ", "), hint), "")
}
