package plugin

import (
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/counts"
)

// count adds the call to the state folder's counts, for whoever shows them (agent/metrics). A call that the specification's own checks
// refused, before there was a configuration, counts in the default folder. The call has its result already: what cannot be counted,
// as where no ADD has made the folder yet, is not.
func (p *plugin) count(result *types.Error, took time.Duration) {
	code := 0
	if result != nil {
		code = int(result.Code)
	}
	conf, err := parseRemoval(p.conf) // what could be read of it
	if err != nil || !filepath.IsAbs(conf.StateDir) {
		conf.StateDir = DefaultStateDir
	}
	if err := counts.Add(conf.StateDir, os.Getenv("CNI_COMMAND"), code, took); err == nil {
		p.trace.Mark("count")
	}
}
