package queueiter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// needs is what [UnsupportedError] names: iterators over task_file came with 5.8, and without BTF none can be written.
const needs = "kernel 5.8 or newer with CONFIG_DEBUG_INFO_BTF, for the module tun too where it is one"

// Iterator is the loaded programs. It may be read any number of times, by one goroutine at a time.
type Iterator struct {
	programs bpfPrograms
	queues   *link.Iter
	openers  *link.Iter
}

// Open loads the iterators. A kernel that cannot run them is an [UnsupportedError]; a process that lacks CAP_BPF or
// CAP_PERFMON gets the kernel's EPERM. Nothing is pinned: all goes with Close or the process.
func Open() (*Iterator, error) {
	kernel, module, err := types()
	if err != nil {
		return nil, err
	}
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("read the queue iterator: %w", err)
	}
	it := &Iterator{}
	opts := ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: kernel, ExtraRelocationTargets: module}}
	if err := spec.LoadAndAssign(&it.programs, &opts); err != nil {
		return nil, loadError("load the queue iterator", err)
	}
	if it.queues, err = link.AttachIter(link.IterOptions{Program: it.programs.Queues}); err == nil {
		it.openers, err = link.AttachIter(link.IterOptions{Program: it.programs.Openers})
	}
	if err != nil {
		return nil, errors.Join(loadError("attach the queue iterator", err), it.Close())
	}
	return it, nil
}

// types are the kernel's types and, where the tun driver is a module, the module's.
func types() (*btf.Spec, []*btf.Spec, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, nil, loadError("read the kernel's BTF", err)
	}
	var tunFile *btf.Struct
	err = kernel.TypeByName("tun_file", &tunFile)
	if err == nil {
		return kernel, nil, nil
	}
	if !errors.Is(err, btf.ErrNotFound) {
		return nil, nil, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	module, err := btf.LoadKernelModuleSpec("tun")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, &UnsupportedError{Needs: needs, Err: errors.New("struct tun_file is not described: the module tun has no BTF, or is not loaded")}
	case err != nil:
		return nil, nil, loadError("read the BTF of the module tun", err)
	}
	return kernel, []*btf.Spec{module}, nil
}

func loadError(what string, err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Needs: needs, Err: err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Close unloads the iterators.
func (it *Iterator) Close() error {
	var errs []error
	for _, l := range []*link.Iter{it.queues, it.openers} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(append(errs, it.programs.Close())...)
}

// Read gives every open file of /dev/net/tun that some process of the reader's pid namespace holds.
func (it *Iterator) Read() ([]Queue, error) {
	records, err := read[bpfQueue](it.queues, 1)
	if err != nil {
		return nil, fmt.Errorf("read the queues of all processes: %w", err)
	}
	openers, err := read[bpfOpener](it.openers, 256)
	if err != nil {
		return nil, fmt.Errorf("read the credentials of all processes: %w", err)
	}
	return gather(records, openers), nil
}

// read runs an iterator once. Its output is whole records in the machine's byte order.
//
// It takes so many records a call. The kernel holds each file that it visits, and lets go of all of them when the call ends: were it long,
// a queue that is closed meanwhile would stay attached until then, and who opens the TAP next would find it busy. So files are
// read one a call.
//
// A call visits a million objects at most. Where none of them has a record it gives EAGAIN, and the next goes on from there
// (MAX_ITER_OBJECTS in kernel/bpf/bpf_iter.c).
func read[T any](iter *link.Iter, records int) ([]T, error) {
	r, err := iter.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var list []T
	record := make([]byte, binary.Size(*new(T)))
	buffered := bufio.NewReaderSize(r, records*len(record))
	for {
		switch _, err := io.ReadFull(buffered, record); {
		case errors.Is(err, io.EOF):
			return list, nil
		case errors.Is(err, unix.EAGAIN): // between records: a call gives whole ones
			continue
		case err != nil:
			return nil, err
		}
		var one T
		if err := binary.Read(bytes.NewReader(record), binary.NativeEndian, &one); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
}

// Read loads the iterators, reads once and unloads them. Errors are those of [Open] and [Iterator.Read].
func Read() ([]Queue, error) {
	it, err := Open()
	if err != nil {
		return nil, err
	}
	all, err := it.Read()
	return all, errors.Join(err, it.Close())
}
