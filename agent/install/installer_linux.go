package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
)

// programs are what is installed as CNI plugins.
var programs = []string{"tapir", "tapir-ipam"}

// tool is what is installed into Options.BinDir.
const tool = "tapirctl"

// Config is what an [Installer] is made of.
type Config struct {
	Options
	Ranges Ranges // nil: nobody tells, and the template has its own
	Logger *slog.Logger
}

// Installer keeps tapir installed.
type Installer struct {
	c   Config
	log *slog.Logger

	mu      sync.Mutex
	state   State
	changes chan struct{}
	reloads chan Options
}

// State is what is installed.
type State struct {
	Installed bool     // an ADD would work: programs and configuration are in place
	Reason    string   // why not, or what is being done
	Conflist  string   // path of the configuration that calls tapir
	Foreign   []string // configurations that the runtime takes before it
	Writes    int      // files written since the start
}

// New makes an Installer. It touches nothing.
func New(c Config) *Installer {
	c.Options = c.Options.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Installer{c: c, log: c.Logger, state: State{Reason: "not begun"}, changes: make(chan struct{}, 1), reloads: make(chan Options, 1)}
}

// Enabled tells whether anything is installed.
func (i *Installer) Enabled() bool { return i.c.Enabled() }

// State is how it stands.
func (i *Installer) State() State {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state
	s.Foreign = slices.Clone(s.Foreign)
	return s
}

// Notes are what should be known though an ADD would work.
func (i *Installer) Notes() (list []string) {
	for _, path := range i.State().Foreign {
		list = append(list, "the runtime takes "+path+" before tapir's configuration")
	}
	return list
}

// Ready is nil where an ADD would work, else why it would not.
func (i *Installer) Ready() error {
	if s := i.State(); !s.Installed {
		return errors.New(s.Reason)
	}
	return nil
}

// Reload takes other options; Run looks at all anew.
func (i *Installer) Reload(o Options) error {
	select {
	case <-i.reloads: // one that nobody has taken yet
	default:
	}
	i.reloads <- o.WithDefaults()
	return nil
}

// Changed gets an element when Ready may say something else.
func (i *Installer) Changed() <-chan struct{} { return i.changes }

// Pauses: events that follow each other closely are looked at together; what failed, or was undone by somebody again and again, waits.
const (
	settle     = 100 * time.Millisecond
	firstPause = time.Second
	lastPause  = 30 * time.Second
	fightAfter = 5 // writes of one file within fightWithin
	fightWhile = time.Minute
)

// Run installs, and puts right what others change, until ctx ends.
func (i *Installer) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the CNI folders: %w", err)
	}
	defer w.Close()
	for _, dir := range []string{i.c.CNIBinDir, i.confDir(), i.c.CNIConfDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := errors.Join(w.Add(dir), sweep(dir)); err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	if i.c.Template != "" {
		if err := w.Add(filepath.Dir(i.c.Template)); err != nil {
			return fmt.Errorf("watch the template's folder: %w", err)
		}
	}
	var changed <-chan struct{}
	if i.c.Ranges != nil {
		changed = i.c.Ranges.Changed()
	}
	pause := firstPause
	var wrote []time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.Events:
			if strings.HasPrefix(filepath.Base(e.Name), tempPrefix) {
				continue
			}
			timer.Reset(settle)
			continue
		case err := <-w.Errors:
			i.log.Warn("events of the CNI folders were lost; looking at all", "error", err)
			timer.Reset(settle)
			continue
		case o := <-i.reloads:
			i.c.Options = o
		case <-changed:
		case <-timer.C:
		}
		n, err := i.pass(ctx)
		i.tell(err)
		now := time.Now()
		for range n {
			wrote = append(wrote, now)
		}
		wrote = slices.DeleteFunc(wrote, func(t time.Time) bool { return now.Sub(t) > fightWhile })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, ErrNoRanges):
			i.log.Warn("tapir is not installed; trying again", "error", err, "after", pause)
			timer.Reset(pause)
			pause = min(2*pause, lastPause)
		case len(wrote) > fightAfter*len(programs):
			i.log.Warn("somebody undoes what is installed; waiting before the next look", "writes", len(wrote), "after", pause)
			timer.Reset(pause)
			pause = min(2*pause, lastPause)
		default:
			pause = firstPause
		}
	}
}

func (i *Installer) tell(err error) {
	i.mu.Lock()
	was := i.state.Installed
	i.state.Installed, i.state.Reason = err == nil, ""
	if err != nil {
		i.state.Reason = err.Error()
	}
	now := i.state
	i.mu.Unlock()
	if was != now.Installed {
		if now.Installed {
			i.log.Info("tapir is installed", "conflist", now.Conflist, "plugins", i.c.CNIBinDir)
		} else {
			i.log.Warn("tapir is no longer installed", "reason", now.Reason)
		}
	}
	select {
	case i.changes <- struct{}{}:
	default:
	}
}

// pass makes everything right and gives how many files it wrote.
func (i *Installer) pass(ctx context.Context) (wrote int, err error) {
	defer func() {
		i.mu.Lock()
		i.state.Writes += wrote
		i.mu.Unlock()
	}()
	for _, name := range programs {
		changed, err := copyProgram(filepath.Join(i.c.From, name), filepath.Join(i.c.CNIBinDir, name))
		if err != nil {
			return wrote, fmt.Errorf("install the plugin %s: %w", name, err)
		}
		if changed {
			wrote++
		}
	}
	if i.c.BinDir != "" {
		changed, err := copyProgram(filepath.Join(i.c.From, tool), filepath.Join(i.c.BinDir, tool))
		if err != nil {
			return wrote, fmt.Errorf("install %s: %w", tool, err)
		}
		if changed {
			wrote++
		}
	}
	if i.c.Mode == ModeBinaries {
		return wrote, nil
	}
	path, l, err := i.wanted()
	if err != nil {
		return wrote, err
	}
	if err := i.usable(ctx, l); err != nil {
		return wrote, fmt.Errorf("an ADD would fail: %w", err)
	}
	content, err := l.write()
	if err != nil {
		return wrote, err
	}
	changed, err := i.put(path, content)
	if changed {
		wrote++
	}
	if err != nil {
		return wrote, fmt.Errorf("write the configuration %s: %w", path, err)
	}
	foreign, err := i.foreign(path)
	i.mu.Lock()
	told := slices.Equal(foreign, i.state.Foreign)
	i.state.Conflist, i.state.Foreign = path, foreign
	i.mu.Unlock()
	if len(foreign) > 0 && !told {
		i.log.Warn("the runtime takes other configurations before tapir's; they are left alone", "files", foreign, "tapirs", path)
	}
	return wrote, err
}

func (i *Installer) ranges() []netip.Prefix {
	if i.c.Ranges == nil {
		return nil
	}
	return i.c.Ranges.Ranges()
}

// confDir is where the configuration goes.
func (i *Installer) confDir() string {
	if i.c.Mode == ModeRuntimeClass {
		return i.c.Folder
	}
	return i.c.CNIConfDir
}

// wanted is the configuration and where it belongs.
func (i *Installer) wanted() (path string, l list, err error) {
	template, err := os.ReadFile(i.c.Template)
	if err != nil {
		return "", l, fmt.Errorf("template: %w", err)
	}
	path = filepath.Join(i.confDir(), i.c.Name)
	own, err := parse(template)
	if err != nil {
		return "", l, fmt.Errorf("template: %w", err)
	}
	alone := i.c.Mode == ModeCluster
	if tapir := own.ours(); i.c.Mode == ModeRuntimeClass && tapir != nil && tapir["ipam"] != nil {
		alone = true
	}
	if alone {
		l, err = render(template, i.ranges(), i.c.PodAnnotations)
		return path, l, err
	}
	other, err := i.other()
	if err != nil {
		return "", l, err
	}
	data, err := os.ReadFile(other)
	if err != nil {
		return "", l, err
	}
	if i.c.Mode == ModeChained {
		path = other
		if before, err := os.ReadFile(original(other)); err == nil {
			// What tapir wrote is made anew from the original; what its owner wrote since then is the new original.
			if now, err := parse(data); err == nil && now.ours() != nil {
				data = before
			}
		}
	}
	l, had, err := extend(data, template, i.c.PodAnnotations)
	if err != nil {
		return "", l, fmt.Errorf("extend %s: %w", other, err)
	}
	if had && i.c.Mode == ModeChained {
		return "", l, fmt.Errorf("extend %s: it calls tapir already, and there is no %s of an earlier installation", other, original(other))
	}
	return path, l, nil
}

// original is where the configuration is kept that was extended.
func original(path string) string { return path + ".tapir-original" }

// other is the configuration to extend.
func (i *Installer) other() (string, error) {
	if i.c.Extend != "" {
		return filepath.Join(i.c.CNIConfDir, i.c.Extend), nil
	}
	names, err := confs(i.c.CNIConfDir)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("want a configuration to extend in %s, got none; it is looked for again when one comes", i.c.CNIConfDir)
	}
	return filepath.Join(i.c.CNIConfDir, names[0]), nil
}

// put writes the configuration; of one that is extended it keeps the original first.
func (i *Installer) put(path string, content []byte) (changed bool, err error) {
	if i.c.Mode == ModeChained {
		now, err := os.ReadFile(path)
		if err != nil {
			return false, err
		}
		l, err := parse(now)
		if err != nil {
			return false, err
		}
		if l.ours() == nil {
			if _, err := putFile(original(path), now); err != nil {
				return false, fmt.Errorf("keep the original: %w", err)
			}
		}
	}
	return putFile(path, content)
}

// foreign are the configurations that the runtime takes before path.
func (i *Installer) foreign(path string) ([]string, error) {
	names, err := confs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var before []string
	for _, name := range names {
		if name < filepath.Base(path) {
			before = append(before, filepath.Join(filepath.Dir(path), name))
		}
	}
	return before, nil
}

// statusTimeout bounds what the plugins take to say that they can work.
const statusTimeout = 20 * time.Second

// usable tells whether an ADD could work: every plugin is there, and tapir's say so themselves (STATUS).
func (i *Installer) usable(ctx context.Context, l list) error {
	for _, kind := range l.types() {
		info, err := os.Stat(filepath.Join(i.c.CNIBinDir, kind))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the plugin %q is not in %s", kind, i.c.CNIBinDir)
		}
		if err != nil {
			return err
		}
		if info.IsDir() || info.Mode().Perm()&0o111 == 0 {
			return fmt.Errorf("the plugin %q in %s cannot be executed", kind, i.c.CNIBinDir)
		}
	}
	// Other plugins may need what a container has not: libraries, files of the node.
	ours := list{keys: map[string]any{"cniVersion": "1.1.0", "name": l.keys["name"]}, plugins: []map[string]any{l.ours()}}
	data, err := ours.write()
	if err != nil {
		return err
	}
	conf, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if err := libcni.NewCNIConfigWithCacheDir([]string{i.c.CNIBinDir}, os.TempDir(), nil).GetStatusNetworkList(ctx, conf); err != nil {
		return fmt.Errorf("STATUS of tapir: %w", err)
	}
	return nil
}

// Plan says what Run would do.
func (i *Installer) Plan(_ context.Context, out io.Writer) error {
	for _, name := range programs {
		same, err := sameFile(filepath.Join(i.c.From, name), filepath.Join(i.c.CNIBinDir, name))
		verb := "write"
		if err != nil {
			verb = "cannot write"
		} else if same {
			verb = "keep"
		}
		fmt.Fprintf(out, "install: %s %s\n", verb, filepath.Join(i.c.CNIBinDir, name))
	}
	if i.c.Mode == ModeBinaries {
		return nil
	}
	path, _, err := i.wanted()
	if err != nil {
		_, err = fmt.Fprintf(out, "install: no configuration: %v\n", err)
		return err
	}
	_, err = fmt.Fprintf(out, "install: keep the configuration %s\n", path)
	return err
}
