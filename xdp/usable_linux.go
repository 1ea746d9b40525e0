package xdp

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// Usable reports why programs could not be used from dir, or nil. It leaves nothing behind and is cheap enough to be
// asked every few seconds: where the programs are not pinned yet it does not load them, which takes the verifier a
// while, but asks whether the kernel has what they call.
func Usable(dir string) error {
	p, err := Open(dir)
	if err == nil {
		return p.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := mustMount(dir); err != nil {
		return fmt.Errorf("bpffs for %q: %w", dir, err)
	}
	for _, m := range []ebpf.MapType{ebpf.Hash, ebpf.PerCPUHash} {
		if err := features.HaveMapType(m); err != nil {
			return unsupported(fmt.Sprintf("BPF map type %s", m), "kernel 4.6 with CONFIG_BPF_SYSCALL", err)
		}
	}
	if err := features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer); err != nil {
		return unsupported("bpf_redirect_peer", "kernel 5.10 with CONFIG_NET_CLS_ACT", err)
	}
	return nil
}

// unsupported gives the answer of a probe its type; another error than "not supported" is that of the probe itself.
func unsupported(feature, needs string, err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: feature, Needs: needs, Err: err}
	}
	return fmt.Errorf("probe %s: %w", feature, err)
}
