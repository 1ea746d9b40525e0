package install

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// The modes: where the configuration goes, and what is in it.
const (
	ModeCluster      = "cluster"      // the template is the node's network
	ModeChained      = "chained"      // the template's tapir comes last in the configuration of another network
	ModeRuntimeClass = "runtimeclass" // a folder of its own, for a runtime handler's cni_conf_dir
	ModeBinaries     = "binaries"     // no configuration
)

// Defaults of [Options].
const (
	DefaultCNIBinDir  = "/opt/cni/bin"
	DefaultCNIConfDir = "/etc/cni/net.d"
	DefaultName       = "10-tapir.conflist"
)

// Options are the configuration key "install" of tapird. Without From nothing is installed.
type Options struct {
	From       string `json:"from"`       // folder with the programs to install
	CNIBinDir  string `json:"cniBinDir"`  // where the runtime looks for plugins
	BinDir     string `json:"binDir"`     // where tapirctl goes; empty: nowhere
	Mode       string `json:"mode"`       // cluster, chained, runtimeclass or binaries
	CNIConfDir string `json:"cniConfDir"` // where the runtime looks for configurations
	Template   string `json:"template"`   // a configuration list, as a person would write it
	Name       string `json:"name"`       // of the file; with chained it is the other network's
	Folder     string `json:"folder"`     // runtimeclass: the folder of its own; default: tapir.d below CNIConfDir
	Extend     string `json:"extend"`     // chained, runtimeclass: the file to extend; empty: the first one that is there
	// PodAnnotations is what pods may choose, for the plugin's key of that name where the template has none.
	PodAnnotations []string `json:"podAnnotations"`
}

// WithDefaults fills in what is empty.
func (o Options) WithDefaults() Options {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&o.CNIBinDir, DefaultCNIBinDir)
	set(&o.CNIConfDir, DefaultCNIConfDir)
	set(&o.Name, DefaultName)
	set(&o.Mode, ModeCluster)
	set(&o.Folder, filepath.Join(o.CNIConfDir, "tapir.d"))
	return o
}

// Enabled tells whether anything is installed.
func (o Options) Enabled() bool { return o.From != "" }

// Validate gives every fault, with paths below path.
func (o Options) Validate(path string, add func(path, text string)) {
	if !o.Enabled() {
		return
	}
	o = o.WithDefaults()
	for key, dir := range map[string]string{"from": o.From, "cniBinDir": o.CNIBinDir, "cniConfDir": o.CNIConfDir, "folder": o.Folder} {
		if !filepath.IsAbs(dir) {
			add(path+"."+key, fmt.Sprintf("want an absolute path, got %q", dir))
		}
	}
	if o.BinDir != "" && !filepath.IsAbs(o.BinDir) {
		add(path+".binDir", fmt.Sprintf("want an absolute path or nothing, got %q", o.BinDir))
	}
	modes := []string{ModeCluster, ModeChained, ModeRuntimeClass, ModeBinaries}
	if !slices.Contains(modes, o.Mode) {
		add(path+".mode", fmt.Sprintf("want one of %q, got %q", modes, o.Mode))
	}
	if o.Mode != ModeBinaries && !filepath.IsAbs(o.Template) {
		add(path+".template", fmt.Sprintf("want an absolute path, got %q", o.Template))
	}
	if o.Name != filepath.Base(o.Name) || filepath.Ext(o.Name) != ".conflist" || !isConf(o.Name) {
		add(path+".name", fmt.Sprintf("want a file's name that ends with .conflist, got %q", o.Name))
	}
	if o.Extend != "" && (o.Extend != filepath.Base(o.Extend) || !isConf(o.Extend)) {
		add(path+".extend", fmt.Sprintf("want a file's name that ends with .conflist, .conf or .json, got %q", o.Extend))
	}
}

// SamePlaces tells whether the options that cannot change while tapird runs are the same in both: what is installed from where to where.
func (o Options) SamePlaces(other Options) bool {
	return o.From == other.From && o.CNIBinDir == other.CNIBinDir && o.BinDir == other.BinDir && o.CNIConfDir == other.CNIConfDir && o.Folder == other.Folder
}

// InPlacesOf is o with the places of other.
func (o Options) InPlacesOf(other Options) Options {
	o.From, o.CNIBinDir, o.BinDir, o.CNIConfDir, o.Folder = other.From, other.CNIBinDir, other.BinDir, other.CNIConfDir, other.Folder
	return o
}

// isConf tells whether a runtime reads a file of that name as a configuration (libcni.ConfFiles).
func isConf(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, ".")
}

// Ranges tells which ranges are the node's.
type Ranges interface {
	Ranges() []netip.Prefix   // none: not known yet
	Changed() <-chan struct{} // gets an element when they are others
}
