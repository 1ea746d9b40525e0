package metrics

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Files as the kernel writes them: proc(5), Documentation/core-api/irq/irq-affinity.rst, sysfs-kernel-iommu_groups.
func TestFilesOfTheKernel(t *testing.T) {
	dir := t.TempDir()
	for irq, text := range map[string]string{"42": "3\n", "43": "2-5,8\n", "44": "1,7\n", "45": "\n"} {
		write(t, filepath.Join(dir, "irq", irq, "effective_affinity_list"), text)
	}
	for irq, want := range map[uint32]int{42: 3, 43: 2, 44: 1, 45: noCPU, 46: noCPU, 0: noCPU} {
		if got := irqCPU(dir, irq); got != want {
			t.Errorf("interrupt %d: want CPU %d, got %d", irq, want, got)
		}
	}
	write(t, filepath.Join(dir, "77", "stat"), "77 (napi/a) b-1) S 2 0 0 0 -1 2129984 0 0 0 0 5 6 0 0 20 0 1 0 99 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 1 0 0 17 6 1 2 0 0 0 0 0 0 0 0 0 0 0\n")
	write(t, filepath.Join(dir, "78", "stat"), "78 (x) S 2\n")
	for pid, want := range map[uint32]int{77: 6, 78: noCPU, 79: noCPU} {
		if got := threadCPU(dir, pid); got != want {
			t.Errorf("thread %d: want CPU %d, got %d", pid, want, got)
		}
	}
	write(t, filepath.Join(dir, "strict", "iommu_group", "type"), "DMA\n")
	for device, want := range map[string]string{"strict": "DMA", "virtual": iommuNone} {
		if got, err := iommuMode(filepath.Join(dir, device)); err != nil || got != want {
			t.Errorf("%s: want %s, got %s, %v", device, want, got, err)
		}
	}
}

// This test's own thread: the kernel's file has the field where it is looked for.
func TestThreadOfThisKernel(t *testing.T) {
	if got := threadCPU("/proc", uint32(os.Getpid())); got < 0 {
		t.Errorf("want a CPU, got %d", got)
	}
}

// A device that is looked at has its series, one that is not there is a problem that is counted, and nothing else is missing.
func TestAnUplinkIsLookedAt(t *testing.T) {
	requireNode(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		link, err := netlink.LinkByName("up0")
		if err != nil || netlink.LinkDel(link) != nil {
			t.Error("remove up0", err)
		}
	})
	s := start(t, Config{Uplinks: []string{"up0", "none"}}).scrape()
	if got, err := s.value("tapir_uplink_iommu_info", "device=up0", "mode=none"); err != nil || got != 1 {
		t.Errorf("got %g, %v", got, err)
	}
	if got, err := s.value("tapir_agent_sample_problems"); err != nil || got != 1 {
		t.Errorf("want one problem, got %g, %v", got, err)
	}
}
