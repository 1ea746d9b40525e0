package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unpack gives the files of a bundle by name.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "tapir-support/")
		if !ok || strings.Contains(name, "..") || h.Mode != 0o600 {
			t.Errorf("file %q, mode %o", h.Name, h.Mode)
		}
		files[name] = string(data)
	}
}

func TestASupportBundleHasAllButSecrets(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000321, 1)
	tag(t, a)
	const token, old, password = "c0ffee11deadbeef22c0ffee33deadbeef", "abad1deaabad1deaabad1dea", "hunter2hunter2"
	write := func(path, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(filepath.Join(dir, "tokens", "net", "aaaa"), token+"\n")
	log := write(filepath.Join(out, "tapird.log"), "a peer said "+token+" here\nrequest {\"version\":1,\"token\":\""+old+"\"}\nAuthorization: Bearer "+old+"\nthe line that stays\n")
	conf := write(filepath.Join(out, "net.d", "10-tapir.conflist"), `{"plugins": [{"type": "tapir", "password": "`+password+`", "mtu": 1400}]}`)
	write(filepath.Join(out, "net.d", "20-other.conf"), `{"type": "other"}`)
	file := filepath.Join(out, "bundle.tar.gz")
	args := []string{"support-bundle", "-o", file, "--state-dir", dir, "--log", log, "--log", filepath.Join(out, "nowhere"), "--config", filepath.Dir(conf)}
	command(t, args...)
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("want mode 0600, got %v, %v", st, err)
	}
	files := unpack(t, file)
	for _, want := range []string{
		"MANIFEST", "version.txt", "node/proc/version", "tapirctl/doctor.json", "tapirctl/list.json", "sample.json", "inspect/net_aaaa_eth0.json",
		"sandbox/net_aaaa_eth0/links.txt", "node/links.txt", "config" + conf, "log" + log,
	} {
		if files[want] == "" {
			t.Errorf("want file %q; the manifest says:\n%s", want, files["MANIFEST"])
		}
	}
	for name, text := range files {
		for _, s := range []string{token, old, password} {
			if strings.Contains(text, s) {
				t.Errorf("%s has the secret %q", name, s)
			}
		}
		if name != "MANIFEST" && !strings.Contains(files["MANIFEST"], "  "+name+"\n") {
			t.Errorf("the manifest lacks %s", name)
		}
	}
	// The controls: what is no secret is there, and what could not be had is told.
	if !strings.Contains(files["log"+log], "the line that stays") || !strings.Contains(files["config"+conf], `"mtu": 1400`) || !strings.Contains(files["sandbox/net_aaaa_eth0/links.txt"], "tap-eth0") {
		t.Errorf("log %q, configuration %q", files["log"+log], files["config"+conf])
	}
	if _, ok := files["config"+filepath.Join(filepath.Dir(conf), "20-other.conf")]; ok {
		t.Error("want no configuration of others")
	}
	if !strings.Contains(files["MANIFEST"], "missing  log") || !strings.Contains(files["tapirctl/list.json"], a.GuestMAC) {
		t.Errorf("manifest:\n%s\nlist: %s", files["MANIFEST"], files["tapirctl/list.json"])
	}
	left, err := filepath.Glob(filepath.Join(out, ".tapir-support-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}

	command(t, append(args, "--redact")...)
	for name, text := range unpack(t, file) {
		if strings.Contains(text, a.GuestMAC) {
			t.Errorf("redacted: %s has the guest's MAC", name)
		}
	}
}

func TestRedactionGivesTheSameNameToTheSameThing(t *testing.T) {
	s, err := newScrubber([]string{t.TempDir()}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{ // in this order: names are given as things are met
		{"10.9.0.2/24 is 10.9.0.2", "ip-1/24 is ip-1"},
		{"lladdr 02:AA:00:00:00:01, 02:aa:00:00:00:01", "lladdr mac-2, mac-2"},
		{"fd00:9::2/64 via fe80::1, 10.9.0.2", "ip-3/64 via ip-4, ip-1"},
		{"127.0.0.1:10178 at 12:30:05, v1.2.3", "127.0.0.1:10178 at 12:30:05, v1.2.3"},
	} {
		if got := s.clean(c.text); got != c.want {
			t.Errorf("%q: want %q, got %q", c.text, c.want, got)
		}
	}
}

// A bundle that cannot be written leaves nothing, and the old one as it was.
func TestABundleThatCannotBeWrittenLeavesNothing(t *testing.T) {
	out := t.TempDir()
	target := filepath.Join(out, "taken")
	if err := os.MkdirAll(filepath.Join(target, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := writeBundle(t.Context(), &options{stateDirs: []string{t.TempDir()}, bpffs: "/sys/fs/bpf/none", output: "table"}, &bundleOptions{file: target})
	if err == nil {
		t.Fatal("want an error: a folder is in the way")
	}
	left, globErr := filepath.Glob(filepath.Join(out, ".tapir-support-*"))
	if globErr != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, globErr)
	}
}
