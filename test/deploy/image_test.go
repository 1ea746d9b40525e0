package deploy

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheImageIsTheSameEachTime builds one from two folders with the same files of other times, made in another order.
func TestTheImageIsTheSameEachTime(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "image")
	build := exec.Command("go", "-C", "../../tools/image", "build", "-o", tool, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tools/image: %v\n%s", err, out)
	}
	program, err := os.ReadFile(tool) // any Go program does
	if err != nil {
		t.Fatal(err)
	}
	archive := func(names []string, when time.Time, content []byte) (data, list []byte) {
		folder, out := t.TempDir(), t.TempDir()
		for _, name := range names {
			path := filepath.Join(folder, "opt/tapir/bin", name)
			err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o700), os.Chtimes(path, when, when))
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(tool, "-o", filepath.Join(out, "x.tar"), "-boms", out, "-name", "localhost/x/y:1", "-entrypoint", "/opt/tapir/bin/b", "-sbom", "/opt/tapir",
			"-label", "a=b", "-platform", "linux/amd64="+folder, "-platform", "linux/arm64="+folder)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("image: %v\n%s", err, out)
		}
		data, err := os.ReadFile(filepath.Join(out, "x.tar"))
		if err != nil {
			t.Fatal(err)
		}
		list, err = os.ReadFile(filepath.Join(out, "y.arm64.cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		return data, list
	}
	one, list := archive([]string{"a", "b"}, time.Unix(1, 0), program)
	two, _ := archive([]string{"b", "a"}, time.Now(), program)
	if !bytes.Equal(one, two) {
		t.Error("two archives of the same files: want the same bytes, got others")
	}
	if other, _ := archive([]string{"a", "b"}, time.Unix(1, 0), append(bytes.Clone(program), 0)); bytes.Equal(one, other) {
		t.Error("archives of other files: want other bytes, got the same")
	}
	if !strings.Contains(string(list), "pkg:golang/github.com/google/go-containerregistry@") {
		t.Errorf("the list of what the programs are made of: want go-containerregistry in it, got %.300s", list)
	}
	var index struct {
		Manifests []struct {
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal(member(t, one, "index.json"), &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/x/y:1" {
		t.Errorf("index.json: want one image of the name localhost/x/y:1, by which containerd and kind know it, got %v", index)
	}
}

// member is a file of a tar.
func member(t *testing.T, archive []byte, name string) []byte {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("find %s: %v", name, err)
		}
		if h.Name == name {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
}
