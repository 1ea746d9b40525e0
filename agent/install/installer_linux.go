package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
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
	c       Config
	log     *slog.Logger
	same    map[string]pair // programs that were found to be right, by path
	changes chan struct{}
	reloads chan Options

	mu    sync.Mutex
	state State
}

// State is what is installed.
type State struct {
	Installed bool     // an ADD would work: programs and configuration are in place
	Reason    string   // why not, or what is being done
	Conflist  string   // path of the configuration that calls tapir
	Foreign   []string // configurations that the runtime takes before it
	Writes    uint64   // files written since the start
}

// New makes an Installer. It touches nothing.
func New(c Config) *Installer {
	c.Options = c.Options.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Installer{
		c: c, log: c.Logger, same: map[string]pair{}, state: State{Reason: "the installation has not begun"},
		changes: make(chan struct{}, 1), reloads: make(chan Options, 1),
	}
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

// Ready is nil where an ADD would work, else why it would not.
func (i *Installer) Ready() error {
	if s := i.State(); !s.Installed {
		return errors.New(s.Reason)
	}
	return nil
}

// Notes are what should be known though an ADD would work.
func (i *Installer) Notes() (list []string) {
	for _, path := range i.State().Foreign {
		list = append(list, "the runtime takes "+path+" before tapir's configuration")
	}
	return list
}

// Changed gets an element when Ready may say something else.
func (i *Installer) Changed() <-chan struct{} { return i.changes }

// Reload takes other options; Run looks at all anew. What cannot change while it runs ([Options.InPlacesOf]) is to be the same.
func (i *Installer) Reload(o Options) error {
	select {
	case <-i.reloads: // one that nobody has taken yet
	default:
	}
	i.reloads <- o.WithDefaults()
	return nil
}

// adopt has other options count. A configuration that belongs elsewhere by them is taken away first.
func (i *Installer) adopt(o Options) error {
	was := i.c.Options
	i.c.Options = o
	if was.Mode == o.Mode && was.Name == o.Name && was.Extend == o.Extend {
		return nil
	}
	old := New(Config{Options: was, Logger: i.log})
	said, err := old.removeConf()
	for _, what := range said {
		i.log.Info("the configuration of the options before", "did", what)
	}
	return err
}

// tell has it known how it stands.
func (i *Installer) tell(err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	i.mu.Lock()
	was := i.state
	i.state.Installed, i.state.Reason = err == nil, reason
	conflist := i.state.Conflist
	i.mu.Unlock()
	if was.Installed == (err == nil) && was.Reason == reason {
		return
	}
	switch {
	case err == nil:
		i.log.Info("tapir is installed", "conflist", conflist, "plugins", i.c.CNIBinDir)
	case errors.Is(err, ErrNoRanges):
		i.log.Info("the network configuration waits", "reason", reason)
	default:
		i.log.Warn("tapir is not installed as it should be", "reason", reason)
	}
	select {
	case i.changes <- struct{}{}:
	default:
	}
}

// pass makes everything right and gives the files that it wrote.
func (i *Installer) pass(ctx context.Context) (wrote []string, err error) {
	if wrote, err = i.copyAll(); err != nil {
		return wrote, err
	}
	if i.c.Mode != ModeChained {
		if err := i.putBackOthers(""); err != nil {
			return wrote, err
		}
	}
	if i.c.Mode == ModeBinaries {
		return wrote, nil
	}
	t, err := i.wanted()
	if err != nil {
		return wrote, err // what is there stays: it may be right
	}
	if err := i.usable(ctx, t); err != nil {
		return wrote, fmt.Errorf("an ADD would fail: %w", err)
	}
	changed, err := i.put(t)
	if changed {
		wrote = append(wrote, t.path)
	}
	if err != nil {
		return wrote, fmt.Errorf("write the configuration %s: %w", t.path, err)
	}
	if i.c.Mode == ModeChained {
		err = i.putBackOthers(t.path)
	}
	return wrote, errors.Join(err, i.look(t.path))
}

func (i *Installer) copyAll() (wrote []string, err error) {
	for _, p := range i.copies() {
		changed, err := i.copy(p)
		if changed {
			wrote = append(wrote, p.to)
		}
		if err != nil {
			return wrote, fmt.Errorf("install %s: %w; what was there before stays", p.to, err)
		}
	}
	return wrote, nil
}

// look remembers where the configuration is, and what the runtime takes before it.
func (i *Installer) look(path string) error {
	list, err := foreign(path)
	if err != nil {
		return err
	}
	i.mu.Lock()
	told := slices.Equal(list, i.state.Foreign)
	i.state.Conflist, i.state.Foreign = path, list
	i.mu.Unlock()
	switch {
	case told:
	case len(list) > 0:
		i.log.Warn("the runtime takes other configurations before tapir's; they are left alone", "files", list, "tapirs", path)
	default:
		i.log.Info("the runtime takes tapir's configuration first", "tapirs", path)
	}
	return nil
}

// confDir is where the configuration goes.
func (i *Installer) confDir() string {
	if i.c.Mode == ModeRuntimeClass {
		return i.c.Folder
	}
	return i.c.CNIConfDir
}

// Check says what of the options' files would keep anything from being installed.
func (o Options) Check() error {
	if !o.Enabled() {
		return nil
	}
	i := New(Config{Options: o})
	var errs []error
	for _, p := range i.copies() {
		if err := executable(i.c.From, filepath.Base(p.from)); err != nil {
			errs = append(errs, fmt.Errorf("install.from: %w", err))
		}
	}
	if i.c.Mode != ModeBinaries {
		data, err := os.ReadFile(i.c.Template)
		if err == nil {
			var l list
			if l, err = parse(data); err == nil && l.ours() == nil {
				err = errNoTapir
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("install.template %s: %w", i.c.Template, err))
		}
	}
	return errors.Join(errs...)
}

// Plan says what Run would do.
func (i *Installer) Plan(ctx context.Context, out io.Writer) error {
	for _, p := range i.copies() {
		same, err := sameFile(p.from, p.to)
		switch {
		case err != nil:
			fmt.Fprintf(out, "install: cannot write %s: %v\n", p.to, err)
		case same:
			fmt.Fprintf(out, "install: keep %s\n", p.to)
		default:
			fmt.Fprintf(out, "install: write %s\n", p.to)
		}
	}
	if i.c.Mode == ModeBinaries {
		return nil
	}
	t, err := i.wanted()
	if err != nil {
		_, err = fmt.Fprintf(out, "install: no configuration now: %v\n", err)
		return err
	}
	content, err := t.list.write()
	if err != nil {
		return err
	}
	verb := "write"
	if has, err := os.ReadFile(t.path); err == nil && slices.Equal(has, content) {
		verb = "keep"
	}
	if t.before != nil && verb == "write" {
		verb = "keep the original of, and extend,"
	}
	fmt.Fprintf(out, "install: %s the configuration %s\n", verb, t.path)
	list, err := foreign(t.path)
	if err != nil {
		return err
	}
	for _, path := range list {
		fmt.Fprintf(out, "install: the runtime takes %s before it\n", filepath.Base(path))
	}
	// With the programs that are there now, which may be others than those that are to be.
	if err := i.usable(ctx, t); err != nil {
		_, err = fmt.Fprintf(out, "install: now an ADD would fail: %v\n", err)
		return err
	}
	return nil
}
