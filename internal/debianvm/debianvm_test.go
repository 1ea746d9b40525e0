package debianvm

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMirrorIsTheSuitesMainArchive(t *testing.T) {
	const list = `nodistro main https://packages.example/node
bookworm contrib http://mirror.example/debian
bookworm-security main http://security.example/debian-security
bookworm main http://mirror.example/debian
bookworm main http://second.example/debian
`
	if got, ok := mirrorOf(list); !ok || got != "http://mirror.example/debian" {
		t.Errorf("want the first mirror of bookworm main, got %q", got)
	}
	if got, ok := mirrorOf("trixie main http://mirror.example/debian\n"); ok {
		t.Errorf("another release's mirror: want none, got %q", got)
	}
}

func TestRootIsNamedByItsPackages(t *testing.T) {
	name := func(packages ...string) string {
		o := Options{Packages: packages}
		return rootName(o.packages())
	}
	if a, b := name("dpdk-dev", "jq"), name("jq", "dpdk-dev", "kmod"); a != b {
		t.Errorf("the same packages in another order, one of them in the base: want one name, got %s and %s", a, b)
	}
	if a, b := name("jq"), name(); a == b {
		t.Errorf("one package more: want another name, got %s", a)
	}
	o := Options{Packages: []string{"jq,evil"}}
	if err := o.defaults(); err == nil || !strings.Contains(err.Error(), `"jq,evil"`) {
		t.Errorf("two packages in one word: want it refused, got %v", err)
	}
}

func TestOutputEndsWithTheStatus(t *testing.T) {
	for _, tt := range []struct {
		name, sent, want string
		status           int
		fault            string
	}{
		{"nothing printed", "\0360\n", "", 0, ""},
		{"text", "a line\nhalf\03617\n", "a line\nhalf", 17, ""},
		{"the separator in the text", "a\036b\n\036c\0361\n", "a\036b\n\036c", 1, ""},
		{"a number after a separator in the text", "a\03612 apples\n\0363\n", "a\03612 apples\n", 3, ""},
		{"cut short", "a line\n", "a line\n", 0, "no exit status"},
		{"cut within the status", "a line\n\036", "a line\n", 0, "no exit status"},
		{"nothing at all", "", "", 0, "no exit status"},
	} {
		for how, r := range map[string]io.Reader{
			"whole": strings.NewReader(tt.sent), "bytewise": iotest.OneByteReader(strings.NewReader(tt.sent)),
			"with its end": iotest.DataErrReader(strings.NewReader(tt.sent)),
		} {
			var b bytes.Buffer
			status, err := copyOutput(&b, r)
			if tt.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fault) || b.String() != tt.want {
					t.Errorf("%s, %s: want %q and an error with %q, got %q, %v", tt.name, how, tt.want, tt.fault, b.String(), err)
				}
				continue
			}
			if err != nil || status != tt.status || b.String() != tt.want {
				t.Errorf("%s, %s: want %q and %d, got %q, %d, %v", tt.name, how, tt.want, tt.status, b.String(), status, err)
			}
		}
	}
}

func TestOutputGivesBackTheReadersAndTheWritersError(t *testing.T) {
	broken := errors.New("broken")
	if _, err := copyOutput(io.Discard, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("want the reader's error, got %v", err)
	}
	r, w := io.Pipe()
	if err := r.CloseWithError(broken); err != nil {
		t.Fatal(err)
	}
	if _, err := copyOutput(w, strings.NewReader("text\n\0360\n")); !errors.Is(err, broken) {
		t.Errorf("want the writer's error, got %v", err)
	}
}

func TestAShellReadsTheSameWords(t *testing.T) {
	words := []string{"printf", "%s|", "plain", "two words", "it's", `"$HOME" \n`, "", "a\nb"}
	got, err := exec.Command("sh", "-c", quote(words)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(words[2:], "|") + "|"; string(got) != want {
		t.Errorf("want %q, got %q", want, got)
	}
}

func TestJobIsADiskOfWholeSectors(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("odd"), 0o750); err != nil {
		t.Fatal(err)
	}
	j := Job{Command: []string{"program", "an argument"}, Files: map[string]string{"bin/program": program}}
	if err := j.defaults(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := j.write(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len()%512 != 0 {
		t.Errorf("want a multiple of 512 bytes, got %d", b.Len())
	}
	want := map[string]struct {
		mode int64
		data string
	}{
		initFile: {0o755, string(jobScript)}, commandFile: {0o755, "exec 'program' 'an argument'\n"}, "bin/program": {0o750, "odd"},
	}
	r := tar.NewReader(&b)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if w, ok := want[h.Name]; err != nil || !ok || w.mode != h.Mode || w.data != string(data) {
			t.Errorf("%s: want %+v, got mode %o and %q, %v", h.Name, w, h.Mode, data, err)
		}
		delete(want, h.Name)
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}

func TestJobsThatCannotRunAreRefused(t *testing.T) {
	for fault, j := range map[string]Job{
		"no command":           {},
		`"/etc/passwd"`:        {Command: []string{"x"}, Files: map[string]string{"/etc/passwd": "x"}},
		`".init"`:              {Command: []string{"x"}, Files: map[string]string{".init": "x"}},
		`"../up"`:              {Command: []string{"x"}, Files: map[string]string{"../up": "x"}},
		"/nonexistent":         {Command: []string{"x"}, Files: map[string]string{"x": "/nonexistent"}},
		"/dev is no regular f": {Command: []string{"x"}, Files: map[string]string{"x": "/dev"}},
	} {
		err := j.defaults()
		if err == nil {
			err = j.write(io.Discard)
		}
		if err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("want an error with %q, got %v", fault, err)
		}
	}
}

// What has to be loaded first must come first: insmod looks up no dependency.
func TestDisksModulesAreInLoadOrder(t *testing.T) {
	ordered := []string{"virtio_ring", "virtio", "virtio-pci", "virtio_blk"}
	for i := range len(ordered) - 1 {
		if a, b := moduleOrder(ordered[i]), moduleOrder(ordered[i+1]); a < 0 || a >= b {
			t.Errorf("want %s before %s, got %d and %d", ordered[i], ordered[i+1], a, b)
		}
	}
	if got := moduleOrder("virtio_net"); got >= 0 {
		t.Errorf("virtio_net reaches no disk: want it left out, got %d", got)
	}
}
