// Package counts counts CNI calls in a file of fixed size that every call maps and adds to: by verb, by code and by how long it
// took. There is no server to reach and no lock to wait for, and a process that is killed loses its own call at most.
package counts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is the file's name in the state folder.
const File = "calls"

// verbs are CNI_COMMAND's values, in the order of the file; what is none of them is counted as the last.
var verbs = []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "other"}

// codes are the CNI error codes that tapir gives (docs/operations.md) in the order of the file, 0 for success; another one is counted
// as the last, -1. New ones are added before the spare places end, and never moved.
var codes = []int{0, 4, 5, 6, 7, 8, 11, 50, 51, 100, 101, 102, 103, 104, 1, 2, 3}

const (
	maxCodes = 24 // places for codes in the file, the last of them for others
	buckets  = 16

	magic   = 0x7461706372756e31 // of this layout
	header  = 64                 // bytes; the magic number is the first eight
	entries = 6 * maxCodes
	// entry is the buckets, then the sum of the durations in ns.
	entrySize = 8 * (buckets + 1)
	fileSize  = header + entries*entrySize
)

// Bounds are the upper bounds of the duration buckets; the last bucket has none. They double.
var Bounds = func() []time.Duration {
	list := make([]time.Duration, buckets-1)
	for i := range list {
		list[i] = time.Millisecond << i
	}
	return list
}()

// Series is what was counted of one verb and code.
type Series struct {
	Verb    string          `json:"verb"`
	Code    int             `json:"code"`    // 0: success; -1: one that this package does not know
	Buckets [buckets]uint64 `json:"buckets"` // calls, each in the first bucket whose bound its duration does not exceed
	Sum     time.Duration   `json:"sum"`     // ns, of all their durations
}

// Count is the number of calls.
func (s Series) Count() (n uint64) {
	for _, b := range s.Buckets {
		n += b
	}
	return n
}

// Add counts one call in the file of a state folder, which is made where it is missing; the folder is not. A file that is none of ours is
// replaced. Nobody waits for it, and what it could not do is only worth a word: the call's own result stands.
func Add(dir, verb string, code int, took time.Duration) (err error) {
	path := filepath.Join(dir, File)
	data, err := open(path)
	if err != nil {
		return fmt.Errorf("count a call: %w", err)
	}
	// A file that somebody cut since is SIGBUS: not for a call that has its result.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("count a call in %s: %v", path, p)
		}
	}()
	at := header + (place(verbs, verb)*maxCodes+codePlace(code))*entrySize
	bucket, _ := slices.BinarySearch(Bounds, took)
	add(data, at+8*bucket, 1)
	add(data, at+8*buckets, uint64(max(took, 0)))
	return unix.Munmap(data)
}

// Read gives what was counted in a state folder: verbs and codes that were met. Without a file there is nothing.
func Read(dir string) ([]Series, error) {
	data, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the counts of calls: %w", err)
	}
	if !ours(data) {
		return nil, fmt.Errorf("read the counts of calls: %s: want %d bytes of this version's, got %d of another's", filepath.Join(dir, File), fileSize, len(data))
	}
	var all []Series
	for v, verb := range verbs {
		for c := range maxCodes {
			s := Series{Verb: verb, Code: -1}
			if c < len(codes) {
				s.Code = codes[c]
			}
			at := header + (v*maxCodes+c)*entrySize
			for b := range s.Buckets {
				s.Buckets[b] = binary.NativeEndian.Uint64(data[at+8*b:])
			}
			s.Sum = time.Duration(binary.NativeEndian.Uint64(data[at+8*buckets:]))
			if s.Count() > 0 {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func ours(data []byte) bool {
	return len(data) == fileSize && binary.NativeEndian.Uint64(data) == magic
}

func place(list []string, s string) int {
	if i := slices.Index(list, s); i >= 0 {
		return i
	}
	return len(list) - 1
}

func codePlace(code int) int {
	if i := slices.Index(codes, code); i >= 0 {
		return i
	}
	return maxCodes - 1
}

// add adds to one number of the mapping, which other processes add to as well.
func add(data []byte, at int, n uint64) {
	atomic.AddUint64((*uint64)(unsafe.Pointer(&data[at])), n)
}

// open maps the file.
func open(path string) ([]byte, error) {
	for range 3 {
		data, err := mapFile(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errOther) {
			return data, err
		}
		if err := create(path, errors.Is(err, errOther)); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is replaced all the time", path)
}

var errOther = errors.New("it is another version's, or damaged")

func mapFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() != fileSize || !info.Mode().IsRegular() {
		return nil, errOther
	}
	data, err := unix.Mmap(int(f.Fd()), 0, fileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	if !ours(data) {
		return nil, errors.Join(errOther, unix.Munmap(data))
	}
	return data, nil
}

// create makes a file of zeros under another name and gives it its own: linked where there is none, so that of two processes one wins and
// both use its file; renamed over one that is none of ours.
func create(path string, replace bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), File+".*.new")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it may have been renamed
	data := make([]byte, fileSize)
	binary.NativeEndian.PutUint64(data, magic)
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if replace {
		return os.Rename(f.Name(), path)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
