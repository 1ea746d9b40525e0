package debianvm

import (
	"archive/tar"
	_ "embed" // the job's init
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Job is one program to run in a guest.
type Job struct {
	// Command is what runs, as root, its working directory being the one with Files. It is found like a shell's, or with a
	// slash in its name relative to that directory.
	Command []string
	// Files are put beside it: the path in the guest, relative, and where it is here. Modes are kept.
	Files map[string]string
	// Stdout gets what the program prints on standard output, byte by byte; it may be nil.
	Stdout io.Writer
	// Log gets the guest's console, which the program's standard error goes to, a line a call; it may be nil.
	Log func(line string)

	CPUs     int // default: 2
	MemoryMB int // default: 1024
	// CountInstructions makes the guest's clocks count its instructions, a nanosecond each, and one CPU run at a time: what takes
	// time in the guest then takes the same on a busy machine. Idle time passes at once.
	CountInstructions bool
	Timeout           time.Duration // from QEMU's start to the program's end; default: 5 minutes
}

// jobScript runs as the guest's init; commandFile is what it runs.
//
//go:embed job.sh
var jobScript []byte

const (
	initFile    = ".init"
	commandFile = ".command"
)

func (j *Job) defaults() error {
	if len(j.Command) == 0 {
		return errors.New("job: no command")
	}
	for name := range j.Files {
		if name == "" || strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") {
			return fmt.Errorf("job: file %q: want a relative path that begins with no dot", name)
		}
	}
	if j.CPUs == 0 {
		j.CPUs = 2
	}
	if j.MemoryMB == 0 {
		j.MemoryMB = 1024
	}
	if j.Timeout == 0 {
		j.Timeout = 5 * time.Minute
	}
	if j.Stdout == nil {
		j.Stdout = io.Discard
	}
	if j.Log == nil {
		j.Log = func(string) {}
	}
	return nil
}

// write writes the job's disk: a tar archive, whose length is a multiple of a disk's sectors.
func (j *Job) write(w io.Writer) error {
	t := tar.NewWriter(w)
	for name, data := range map[string][]byte{initFile: jobScript, commandFile: []byte("exec " + quote(j.Command) + "\n")} {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	for name, path := range j.Files {
		if err := addFile(t, name, path); err != nil {
			return fmt.Errorf("job: file %q: %w", name, err)
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

// quote writes a command so that a shell reads the same words.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
