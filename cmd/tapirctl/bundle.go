package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/internal/version"
)

// bundleOptions are the flags of support-bundle.
type bundleOptions struct {
	file    string
	logs    []string
	configs []string
	redact  bool
	address string
}

func newBundle(o *options) *cobra.Command {
	b := &bundleOptions{}
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write what somebody needs to help into one file, without secrets",
		Long: `Write a gzipped tar archive, mode 0600: versions, kernel, what doctor, list, xdp and inspect say, a sample of all counters, what nft, ip and
tc say of the node and its sandboxes, tapird's journal, and the configurations and logs that are named. Tokens are in none of it: none is
read on purpose, and where one stands in a log it is taken out. --redact replaces MACs and IP addresses by names, the same ones everywhere.
MANIFEST lists the files with their digests, and what could not be had.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.file == "" {
				b.file = "tapir-support-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			n, err := writeBundle(cmd.Context(), o, b)
			if err != nil {
				return err
			}
			return say(cmd, o, map[string]any{"file": b.file, "files": n}, "%s: %d files", b.file, n)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&b.file, "output", "o", "", "where to write it (default: tapir-support-TIME.tar.gz in this folder)")
	f.StringSliceVar(&b.logs, "log", nil, "a log to take along, its last MiB; may be given more than once")
	f.StringSliceVar(&b.configs, "config", []string{"/etc/cni/net.d", "/etc/tapir"}, "a configuration, or a folder of them, to take along; only those of tapir are taken from a folder")
	f.BoolVar(&b.redact, "redact", false, "replace MACs and IP addresses by names")
	f.StringVar(&b.address, "page-address", page.DefaultAddress, "where tapird serves its page")
	return cmd
}

// maxSandboxes is in how many sandboxes ip and tc are asked: each takes a few processes.
const maxSandboxes = 64

// bundle is an archive that is being made.
type bundle struct {
	tar      *tar.Writer
	scrub    *scrubber
	now      time.Time
	manifest bytes.Buffer
	files    int
}

// writeBundle writes beside the file first, so that there is a whole one or none.
func writeBundle(ctx context.Context, o *options, b *bundleOptions) (files int, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(b.file), ".tapir-support-*") // mode 0600
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	defer tmp.Close()
	scrub, err := newScrubber(o.stateDirs, b.redact)
	if err != nil {
		return 0, err
	}
	zip := gzip.NewWriter(tmp)
	w := &bundle{tar: tar.NewWriter(zip), scrub: scrub, now: time.Now()}
	if err := w.all(ctx, o, b); err != nil {
		return 0, err
	}
	for _, end := range []func() error{w.tar.Close, zip.Close, tmp.Sync, tmp.Close} {
		if err := end(); err != nil {
			return 0, err
		}
	}
	return w.files, os.Rename(tmp.Name(), b.file)
}

// all adds everything. What could not be had is told in the manifest: a broken node is what a bundle is for.
func (w *bundle) all(ctx context.Context, o *options, b *bundleOptions) error {
	fmt.Fprintf(&w.manifest, "tapir support bundle, %s, redacted: %s\n", w.now.UTC().Format(time.RFC3339), yesNo(b.redact))
	var errs []error
	add := func(name string, data []byte, err error) { errs = append(errs, w.add(name, data, err)) }
	add("version.txt", []byte("tapirctl "+version.String()+"\n"), nil)
	for _, file := range []string{"/proc/version", "/proc/cmdline", "/proc/modules", "/proc/sys/kernel/random/boot_id", "/etc/os-release"} {
		data, err := os.ReadFile(file)
		add("node"+file, data, err)
	}
	for _, args := range [][]string{{"doctor"}, {"list"}, {"queues"}, {"xdp"}} {
		data, err := w.self(ctx, o, args...)
		add("tapirctl/"+args[0]+".json", data, err)
	}
	sample, err := takeOne(ctx, o)
	data, jsonErr := asJSON(sample)
	add("sample.json", data, errors.Join(err, jsonErr))
	recorded, err := attachments(ctx, o)
	if err != nil {
		add("attachments", nil, err)
	}
	for i, rec := range recorded {
		name := strings.ReplaceAll(rec.Key.String(), "/", "_")
		seen, seenErr := asJSON(inspectAttachment(ctx, o, rec, sample, b.address))
		add("inspect/"+name+".json", seen, seenErr)
		switch {
		case rec.Netns == "":
		case i >= maxSandboxes:
			add("sandbox/"+name, nil, fmt.Errorf("ip and tc were asked in the first %d sandboxes alone", maxSandboxes))
		default:
			w.tools(ctx, "sandbox/"+name+"/", []string{"nsenter", "--net=" + rec.Netns, "--"}, add)
		}
	}
	w.tools(ctx, "node/", nil, add)
	data, err = run1(ctx, "nft", "list", "table", "inet", "tapir")
	add("node/nft.txt", data, err)
	w.named(o, b, add)
	errs = append(errs, w.add("MANIFEST", w.manifest.Bytes(), nil))
	return errors.Join(errs...)
}

// tools adds what ip and tc say of a network namespace.
func (w *bundle) tools(ctx context.Context, prefix string, before []string, add func(string, []byte, error)) {
	for _, t := range []struct{ name, command string }{
		{"links", "ip -d -s link"}, {"addresses", "ip address"}, {"routes", "ip route show table all"}, {"neighbours", "ip neighbour"}, {"qdiscs", "tc -s qdisc"},
	} {
		data, err := run1(ctx, append(append([]string{}, before...), strings.Fields(t.command)...)...)
		add(prefix+t.name+".txt", data, err)
	}
}

// named adds files that were named, and tapird's journals.
func (w *bundle) named(o *options, b *bundleOptions, add func(string, []byte, error)) {
	for _, dir := range o.stateDirs {
		data, err := os.ReadFile(filepath.Join(dir, "tapird.json"))
		add("journal"+filepath.Join(dir, "tapird.json"), data, err)
	}
	for _, path := range b.configs {
		st, err := os.Stat(path)
		if err == nil && st.IsDir() {
			files, globErr := filepath.Glob(filepath.Join(path, "*"))
			for _, f := range files {
				if data, readErr := os.ReadFile(f); readErr == nil && bytes.Contains(data, []byte("tapir")) {
					add("config"+f, data, nil)
				}
			}
			err = globErr
		} else if err == nil {
			data, readErr := os.ReadFile(path)
			add("config"+path, data, readErr)
		}
		if err != nil {
			add("config"+path, nil, err)
		}
	}
	for _, path := range b.logs {
		data, err := tail(path)
		add("log/"+strings.TrimLeft(filepath.Clean(path), "/."), data, err)
	}
}

// maxLog is how much of a log is taken, bytes.
const maxLog = 1 << 20

func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// self is what another command of tapirctl prints as JSON. Findings are no failure here.
func (w *bundle) self(ctx context.Context, o *options, args ...string) ([]byte, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(append(args, "-o", "json", "--bpffs", o.bpffs, "--state-dir", strings.Join(o.stateDirs, ",")))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, errFindings) {
		err = nil
	}
	return out.Bytes(), err
}

// toolPatience bounds one run of a tool.
const toolPatience = 10 * time.Second

func run1(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return out, nil
}

func asJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	err := printJSON(&b, v)
	return b.Bytes(), err
}

// add adds a file, or says in the manifest why it is not there. The error is of the archive.
func (w *bundle) add(name string, data []byte, why error) error {
	name = w.scrub.clean(strings.TrimLeft(name, "/"))
	if why != nil {
		fmt.Fprintf(&w.manifest, "missing  %s: %s\n", name, w.scrub.clean(strings.ReplaceAll(why.Error(), "\n", " ")))
		return nil
	}
	data = []byte(w.scrub.clean(string(data)))
	if name != "MANIFEST" {
		sum := sha256.Sum256(data)
		fmt.Fprintf(&w.manifest, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	w.files++
	if err := w.tar.WriteHeader(&tar.Header{Name: "tapir-support/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: w.now}); err != nil {
		return err
	}
	_, err := w.tar.Write(data)
	return err
}
