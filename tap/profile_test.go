package tap

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func profile(t *testing.T, vmm string) Profile {
	t.Helper()
	p, err := ProfileOf(vmm)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProfilesSpeakTheVMMsTerms(t *testing.T) {
	for _, tt := range []struct {
		vmm   string
		fds   []int
		count int
		want  string // the option, or part of the refusal
	}{
		{QEMU, []int{5}, 1, "fd=5"},
		{QEMU, []int{5, 6, 9}, 3, "fds=5:6:9"},
		{CloudHypervisor, []int{5}, 2, "fd=[5]"},
		{CloudHypervisor, []int{5, 6}, 4, "fd=[5,6]"},
		{CloudHypervisor, []int{2}, 2, "want a descriptor above 2, got 2"},
		{Firecracker, []int{5}, 1, "Firecracker takes no open queues: it opens its TAP by name alone"},
		{Firecracker, []int{5, 6}, 2, `set "queues": 1`},
		{Kata, []int{5}, 1, "DAN"},
		{"", []int{5}, 1, `name it by "vmm"`},
		{QEMU, nil, 0, "want 1 to 256, got 0"},
	} {
		p := profile(t, tt.vmm)
		got, err := p.FDOption(tt.fds)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%q with descriptors %v: want %q, got %q", tt.vmm, tt.fds, tt.want, got)
		}
		if got := p.Count(len(tt.fds)); got != tt.count {
			t.Errorf("%q counts %d queues as %d, want %d", tt.vmm, len(tt.fds), got, tt.count)
		}
	}
	if _, err := ProfileOf("fire"); err == nil || !strings.Contains(err.Error(), "generic, firecracker") {
		t.Errorf("want an error that lists the names, got %v", err)
	}
}

func TestMismatchSaysWhichSideDiffers(t *testing.T) {
	one, many := Flags(1), Flags(2)
	for _, tt := range []struct {
		created, asked uint16
		want           string
	}{
		{many, one, `it was created with multi_queue and the VMM did not ask for it; set "queues": 1`},
		{one, many | unix.IFF_NAPI, `it was created without multi_queue and the VMM asked for it; set "queues" to what the VMM opens`},
		{one, one &^ unix.IFF_VNET_HDR, `it was created with vnet_hdr and the VMM did not ask for it`},
	} {
		if got := (&MismatchError{Created: tt.created, Asked: tt.asked}).Error(); got != tt.want {
			t.Errorf("want %q, got %q", tt.want, got)
		}
	}
}
