package xdp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// DefaultDir is where programs and maps are pinned.
const DefaultDir = "/sys/fs/bpf/tapir"

// versionPrefix starts the name of a version's directory; its digest follows.
const versionPrefix = "redirect-"

// programNames are the programs by the role of the device they run on; a program's pin has its name.
var programNames = map[Role]string{
	RoleGuest: redirectProgGuestIngress,
	RolePod:   redirectProgPodIngress,
	RoleHost:  redirectProgHostIngress,
}

// Digest identifies the version of the programs that this binary holds, by their object's content.
var Digest = sync.OnceValue(func() string {
	sum := sha256.Sum256(_RedirectBytes)
	return hex.EncodeToString(sum[:8])
})

// Programs are the pinned programs and maps of one version. Pins are opened when they are first needed. Methods may be
// called from several goroutines at once.
type Programs struct {
	dir    string // the version's own
	digest string
	pin    uint64 // inode of map endpoints' pin

	mu        sync.Mutex
	endpoints *ebpf.Map
	counters  *ebpf.Map
	programs  map[Role]*ebpf.Program
}

// Open opens the programs of this binary's version that are pinned in dir. Where they are not, the error is
// [fs.ErrNotExist].
func Open(dir string) (*Programs, error) { return OpenVersion(dir, Digest()) }

// OpenVersion opens the programs of any version: those that an attachment made by another binary uses. Their endpoints
// can be listed and deleted and they can be detached; Reserve, Update, Lookup and Endpoints give an error where that version's map
// has another layout. Where they are not pinned in dir, the error is [fs.ErrNotExist].
func OpenVersion(dir, digest string) (*Programs, error) {
	if digest == "" || digest != filepath.Base(digest) {
		return nil, fmt.Errorf("open programs in %q: %q is no version", dir, digest)
	}
	p := &Programs{dir: filepath.Join(dir, versionPrefix+digest), digest: digest, programs: make(map[Role]*ebpf.Program)}
	p.pin = p.pinInode() // before the map is opened: pins that are replaced in between are then not taken for these
	m, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, redirectMapEndpoints), nil)
	if err != nil {
		return nil, fmt.Errorf("open programs in %q: %w", p.dir, err)
	}
	p.endpoints = m
	return p, nil
}

// Pinned reports whether what was opened is what is pinned: a clean-up may have unpinned it since, and another process
// pinned its like.
func (p *Programs) Pinned() bool {
	now := p.pinInode()
	return now != 0 && now == p.pin
}

// pinInode is the inode of map endpoints' pin, which bpffs does not use twice; 0 where there is none.
func (p *Programs) pinInode() uint64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(p.dir, redirectMapEndpoints), &st); err != nil {
		return 0
	}
	return st.Ino
}

// Versions lists the digests of the programs that are pinned in dir, sorted; none where dir does not exist.
func Versions(dir string) ([]string, error) {
	out, err := pinnedNames(dir, versionPrefix)
	if err != nil {
		return nil, fmt.Errorf("list program versions: %w", err)
	}
	return out, nil
}

// pinnedNames are what follows the prefix in the names of dir's entries, sorted; none where dir does not exist.
func pinnedNames(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), prefix); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Digest identifies these programs' version.
func (p *Programs) Digest() string { return p.digest }

// Close lets go of the programs and maps; they stay pinned and attached.
func (p *Programs) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, m := range []*ebpf.Map{p.endpoints, p.counters} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	for _, prog := range p.programs {
		errs = append(errs, prog.Close())
	}
	p.endpoints, p.counters = nil, nil
	clear(p.programs)
	return errors.Join(errs...)
}

// program opens the pin of the role's program.
func (p *Programs) program(role Role) (*ebpf.Program, error) {
	name, ok := programNames[role]
	if !ok {
		return nil, fmt.Errorf("role: want guest, pod or host, got %d", role)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if prog := p.programs[role]; prog != nil {
		return prog, nil
	}
	prog, err := openPinned(filepath.Join(p.dir, name))
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", name, err)
	}
	p.programs[role] = prog
	return prog, nil
}

// openPinned opens a pinned program. It is ebpf.LoadPinnedProgram without that function's probe for object names, which
// reads the mount table and creates a map: 0.3 ms of each ADD.
func openPinned(path string) (*ebpf.Program, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, err
	}
	var pin runtime.Pinner // the kernel reads the name by its address
	pin.Pin(name)
	defer pin.Unpin()
	attr := struct { // union bpf_attr for BPF_OBJ_GET, include/uapi/linux/bpf.h
		pathname  uint64
		bpfFD     uint32
		fileFlags uint32
	}{pathname: uint64(uintptr(unsafe.Pointer(name)))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return nil, &fs.PathError{Op: "open pin", Path: path, Err: errno}
	}
	return ebpf.NewProgramFromFD(int(fd))
}

// counterMap opens the pin of map counters.
func (p *Programs) counterMap() (*ebpf.Map, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counters != nil {
		return p.counters, nil
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, redirectMapCounters), nil)
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", redirectMapCounters, err)
	}
	p.counters = m
	return m, nil
}
