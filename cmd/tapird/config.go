package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/tapir-cni/tapir/agent/broker"
	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/metrics"
	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/agent/tuner"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// config is the configuration file. Each key has a flag.
type config struct {
	Socket    string   `json:"socket"`
	StateDirs []string `json:"stateDirs"`
	Timeout   duration `json:"timeout"`
	MaxPeers  int      `json:"maxPeers"`
	Uplink    bool     `json:"uplink"`
	BPFFS     string   `json:"bpffs"`

	MetricsBind    string   `json:"metricsBindAddress"`
	MetricsUplinks []string `json:"metricsUplinks"`
	PProf          bool     `json:"pprof"`

	PageBind string `json:"pageBindAddress"`

	LogLevel string `json:"logLevel"`

	Tuner       string                  `json:"tuner"`
	Profile     string                  `json:"profile"`
	Profiles    tuner.Profiles          `json:"profiles"`    // the file's alone
	PodProfiles []string                `json:"podProfiles"` // likewise
	TuneUplinks map[string]tuner.Uplink `json:"tuneUplinks"` // likewise

	Reconcile   string             `json:"reconcile"`
	CRIEndpoint string             `json:"criEndpoint"`
	Grace       duration           `json:"grace"`
	Every       duration           `json:"reconcileEvery"` // the file's alone
	Policies    reconcile.Policies `json:"policies"`       // likewise

	Install install.Options `json:"install"` // of its keys some have flags
	Cluster clusterConfig   `json:"cluster"` // the file's alone

	LogFormat string `json:"logFormat"`
}

// duration is written as in "5s".
type duration time.Duration

// Std is the duration as the standard library has it.
func (d duration) Std() time.Duration { return time.Duration(d) }

// UnmarshalText reads "5s".
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

func defaults() config {
	return config{
		Socket: client.DefaultSocket, StateDirs: []string{state.DefaultDir}, Timeout: duration(broker.DefaultTimeout),
		MaxPeers: broker.DefaultMaxPeers, Uplink: true, BPFFS: xdp.DefaultDir, MetricsBind: metrics.DefaultBind, PageBind: page.DefaultAddress,
		Tuner: string(tuner.On), Profile: tuner.DefaultProfile, PodProfiles: []string{tuner.OffProfile},
		Reconcile: string(reconcile.On), Grace: duration(reconcile.DefaultGrace), Every: duration(reconcile.DefaultEvery), LogLevel: "info", LogFormat: "text",
	}
}

// read reads the file; a key that it has not keeps its default.
func read(file string) (config, error) {
	c := defaults()
	if file == "" {
		return c, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	faults, err := jsonkeys.Check(data, c)
	if err == nil {
		err = faults.Err()
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return c, fmt.Errorf("configuration %s: %w", file, err)
	}
	return c, nil
}

// over is the file's configuration with the flags that were given in place of their keys.
func (c config) over(file string, given func(flag string) bool) (config, error) {
	out, err := read(file)
	if err != nil {
		return out, err
	}
	for flag, take := range map[string]func(){
		"socket":    func() { out.Socket = c.Socket },
		"state-dir": func() { out.StateDirs = c.StateDirs },
		"timeout":   func() { out.Timeout = c.Timeout },
		"max-peers": func() { out.MaxPeers = c.MaxPeers },
		"uplink":    func() { out.Uplink = c.Uplink },
		"bpffs":     func() { out.BPFFS = c.BPFFS },

		"metrics-bind-address": func() { out.MetricsBind = c.MetricsBind },
		"metrics-uplink":       func() { out.MetricsUplinks = c.MetricsUplinks },
		"pprof":                func() { out.PProf = c.PProf },
		"page-bind-address":    func() { out.PageBind = c.PageBind },

		"reconcile":    func() { out.Reconcile = c.Reconcile },
		"cri-endpoint": func() { out.CRIEndpoint = c.CRIEndpoint },
		"grace":        func() { out.Grace = c.Grace },

		"install-from":     func() { out.Install.From = c.Install.From },
		"install-mode":     func() { out.Install.Mode = c.Install.Mode },
		"install-template": func() { out.Install.Template = c.Install.Template },

		"tuner":      func() { out.Tuner = c.Tuner },
		"profile":    func() { out.Profile = c.Profile },
		"log-level":  func() { out.LogLevel = c.LogLevel },
		"log-format": func() { out.LogFormat = c.LogFormat },
	} {
		if given(flag) {
			take()
		}
	}
	if err := out.validate(); err != nil {
		return out, usageError{err}
	}
	return out, nil
}

// fixed gives the keys that are others in now and cannot change while tapird runs, and makes them what they were.
func (c config) fixed(now *config) (keys []string) {
	keep := func(key string, same bool) {
		if !same {
			keys = append(keys, key)
		}
	}
	keep("socket", c.Socket == now.Socket)
	keep("stateDirs", slices.Equal(c.StateDirs, now.StateDirs))
	keep("timeout", c.Timeout == now.Timeout)
	keep("maxPeers", c.MaxPeers == now.MaxPeers)
	keep("uplink", c.Uplink == now.Uplink)
	keep("bpffs", c.BPFFS == now.BPFFS)
	keep("metricsBindAddress", c.MetricsBind == now.MetricsBind)
	keep("metricsUplinks", slices.Equal(c.MetricsUplinks, now.MetricsUplinks))
	keep("pprof", c.PProf == now.PProf)
	keep("pageBindAddress", c.PageBind == now.PageBind)
	now.PageBind = c.PageBind
	now.MetricsBind, now.MetricsUplinks, now.PProf = c.MetricsBind, c.MetricsUplinks, c.PProf
	keep("install", c.Install.SamePlaces(now.Install))
	now.Install = now.Install.InPlacesOf(c.Install)
	keep("cluster", reflect.DeepEqual(c.Cluster, now.Cluster))
	now.Cluster = c.Cluster
	keep("logFormat", c.LogFormat == now.LogFormat)
	now.Uplink, now.BPFFS = c.Uplink, c.BPFFS
	now.Socket, now.StateDirs, now.Timeout, now.MaxPeers, now.LogFormat = c.Socket, c.StateDirs, c.Timeout, c.MaxPeers, c.LogFormat
	return keys
}

func (c config) validate() error {
	var faults jsonkeys.Faults
	// 108 bytes of sun_path, a NUL and the ".new" of a socket that is being made (unix(7)).
	if !filepath.IsAbs(c.Socket) || len(c.Socket) > 103 {
		faults.Add("socket", fmt.Sprintf("want an absolute path of at most 103 bytes, got %q", c.Socket))
	}
	if len(c.StateDirs) == 0 {
		faults.Add("stateDirs", "want one or more, got none")
	}
	for i, dir := range c.StateDirs {
		if !filepath.IsAbs(dir) {
			faults.Add(fmt.Sprintf("stateDirs[%d]", i), fmt.Sprintf("want an absolute path, got %q", dir))
		}
	}
	if c.Timeout.Std() < 10*time.Millisecond || c.Timeout.Std() > time.Minute {
		faults.Add("timeout", fmt.Sprintf("want 10ms to 1m, got %s", c.Timeout.Std()))
	}
	if c.MaxPeers < 1 || c.MaxPeers > 4096 {
		faults.Add("maxPeers", fmt.Sprintf("want 1 to 4096, got %d", c.MaxPeers))
	}
	if !filepath.IsAbs(c.BPFFS) {
		faults.Add("bpffs", fmt.Sprintf("want an absolute path, got %q", c.BPFFS))
	}
	checkBind(&faults, "metricsBindAddress", c.MetricsBind, metrics.DefaultBind)
	checkBind(&faults, "pageBindAddress", c.PageBind, page.DefaultAddress)
	if modes := []string{string(tuner.On), string(tuner.Off), string(tuner.Look)}; !slices.Contains(modes, c.Tuner) {
		faults.Add("tuner", fmt.Sprintf("want one of %q, got %q", modes, c.Tuner))
	}
	c.Profiles.Validate("profiles", faults.Add)
	if !slices.Contains(c.Profiles.Names(), c.Profile) {
		faults.Add("profile", fmt.Sprintf("want one of %q, got %q", c.Profiles.Names(), c.Profile))
	}
	for i, name := range c.PodProfiles {
		if !slices.Contains(c.Profiles.Names(), name) {
			faults.Add(fmt.Sprintf("podProfiles[%d]", i), fmt.Sprintf("want one of %q, got %q", c.Profiles.Names(), name))
		}
	}
	for name, u := range c.TuneUplinks {
		u.Validate("tuneUplinks."+name, faults.Add)
	}
	if modes := []string{string(reconcile.On), string(reconcile.Idle), string(reconcile.DryRun)}; !slices.Contains(modes, c.Reconcile) {
		faults.Add("reconcile", fmt.Sprintf("want one of %q, got %q", modes, c.Reconcile))
	}
	if c.CRIEndpoint != "" {
		if err := reconcile.ValidateEndpoint(c.CRIEndpoint); err != nil {
			faults.Add("criEndpoint", err.Error())
		}
	}
	if c.Grace.Std() < time.Second || c.Grace.Std() > 24*time.Hour {
		faults.Add("grace", fmt.Sprintf("want 1s to 24h, got %s", c.Grace.Std()))
	}
	if c.Every.Std() < 10*time.Second || c.Every.Std() > 24*time.Hour {
		faults.Add("reconcileEvery", fmt.Sprintf("want 10s to 24h, got %s", c.Every.Std()))
	}
	c.Policies.Validate("policies", faults.Add)
	c.Install.Validate("install", faults.Add)
	c.Cluster.Validate("cluster", faults.Add)
	if err := new(slog.LevelVar).UnmarshalText([]byte(c.LogLevel)); err != nil {
		faults.Add("logLevel", fmt.Sprintf("want debug, info, warn or error, got %q", c.LogLevel))
	}
	if !slices.Contains([]string{"text", "json"}, c.LogFormat) {
		faults.Add("logFormat", fmt.Sprintf("want text or json, got %q", c.LogFormat))
	}
	return faults.Err()
}

// checkBind checks an address and a port to serve at, as in example, or none.
func checkBind(faults *jsonkeys.Faults, key, bind, example string) {
	if bind == "" {
		return
	}
	host, port, err := net.SplitHostPort(bind)
	if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 {
		faults.Add(key, fmt.Sprintf("want an address and a port as in %q, or nothing, got %q", example, bind))
	} else if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		faults.Add(key, fmt.Sprintf("want an IP address, \"localhost\" or nothing before the port, got %q", bind))
	}
}
