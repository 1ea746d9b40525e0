package microvm

import (
	"fmt"
	"io"
	"io/fs"
)

// CPIO writes an archive in the "newc" format, which the kernel unpacks as an initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst). Several archives, one after the other, are unpacked in
// turn, so that a machine's own files can follow a shared image.
type CPIO struct {
	w   io.Writer
	ino int
	err error
}

// The file types of st_mode.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
)

// NewCPIO begins an archive on w.
func NewCPIO(w io.Writer) *CPIO { return &CPIO{w: w} }

// Dir adds a directory; its parent must have been added before.
func (c *CPIO) Dir(name string) { c.entry(name, cpioDir|0o755, nil) }

// File adds a file.
func (c *CPIO) File(name string, perm fs.FileMode, data []byte) {
	c.entry(name, cpioFile|uint32(perm.Perm()), data)
}

// Close writes the trailer and gives the first error of all.
func (c *CPIO) Close() error {
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

func (c *CPIO) entry(name string, mode uint32, data []byte) {
	c.ino++
	nlink := 1
	if mode&cpioDir == cpioDir {
		nlink = 2
	}
	// ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, 0, 0, nlink, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.padded([]byte(header + name + "\x00"))
	c.padded(data)
}

// padded writes b and zeros up to a multiple of four. Each part starts at one.
func (c *CPIO) padded(b []byte) {
	if c.err != nil {
		return
	}
	if _, c.err = c.w.Write(b); c.err != nil {
		return
	}
	if rest := len(b) % 4; rest != 0 {
		_, c.err = c.w.Write(make([]byte, 4-rest))
	}
}
