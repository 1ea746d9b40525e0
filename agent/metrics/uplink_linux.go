package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/tapir-cni/tapir/internal/netdevgenl"
)

// uplink adds the series of one device of the node. A driver that says nothing of its queues or has no page pools has none of these.
func (p *page) uplink(name string) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("uplink %q: %w", name, err)
	}
	base := p.labels.take(1)
	base[0] = p.shared("device", name)
	mode, err := iommuMode(filepath.Join("/sys/class/net", name, "device"))
	if err != nil {
		return fmt.Errorf("uplink %q: %w", name, err)
	}
	p.add(uplinkIOMMU, base, 1, mode)
	c, err := netdevgenl.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // before Linux 6.3
	}
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // of a socket that was read
	return errors.Join(p.pools(c, dev.Index, base), p.polling(c, dev.Index, base))
}

// pools adds up the page pools of a device. Those of a closed one are gone, and what they counted with them.
func (p *page) pools(c *netdevgenl.Conn, index int, base []*dto.LabelPair) error {
	pools, err := c.PagePools()
	if err != nil {
		return err
	}
	var pages, bytes uint64
	found := false
	for _, pool := range pools {
		if pool.IfIndex == index {
			found = true
			pages, bytes = pages+pool.Inflight, bytes+pool.InflightBytes
		}
	}
	if !found {
		return nil
	}
	p.add(uplinkInflightPages, base, float64(pages))
	p.add(uplinkInflightBytes, base, float64(bytes))
	stats, err := c.PagePoolStats()
	if err != nil {
		return err
	}
	var sum [netdevgenl.PageEvents]uint64
	for _, s := range stats {
		if s.IfIndex == index {
			for i, n := range s.Pages {
				sum[i] += n
			}
		}
	}
	for i, n := range sum {
		p.add(uplinkPages, base, float64(n), netdevgenl.PageEvent(i).String())
	}
	return nil
}

// polling says who polls each queue.
func (p *page) polling(c *netdevgenl.Conn, index int, base []*dto.LabelPair) error {
	napis, err := c.NAPIs(index)
	if err != nil {
		return err
	}
	byID := map[uint32]netdevgenl.NAPI{}
	for _, n := range napis {
		byID[n.ID] = n
		p.add(uplinkNAPIThread, base, number(n.PID != 0), strconv.FormatUint(uint64(n.ID), 10))
	}
	queues, err := c.Queues(index)
	if err != nil {
		return err
	}
	for _, q := range queues {
		n, ok := byID[q.NAPI]
		if !ok {
			continue
		}
		by, cpu := "irq", irqCPU("/proc", n.IRQ)
		if n.PID != 0 {
			by, cpu = "thread", threadCPU("/proc", n.PID)
		}
		p.add(uplinkQueueCPU, base, float64(cpu), strconv.FormatUint(uint64(q.ID), 10), q.Type.String(), by)
	}
	return nil
}

// noCPU says that nobody knows.
const noCPU = -1

// irqCPU is the first CPU of an interrupt's effective affinity. No interrupt has the number 0.
func irqCPU(proc string, irq uint32) int {
	if irq == 0 {
		return noCPU
	}
	data, err := os.ReadFile(filepath.Join(proc, "irq", strconv.FormatUint(uint64(irq), 10), "effective_affinity_list"))
	if err != nil {
		return noCPU
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(data)), ",")
	first, _, _ = strings.Cut(first, "-")
	return cpuNumber(first)
}

// threadCPU is where a thread ran last: field 39 of /proc/PID/stat (proc(5)). Its name, field 2, may have spaces and parentheses.
func threadCPU(proc string, pid uint32) int {
	data, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "stat"))
	if err != nil {
		return noCPU
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const processor = 39 - 3 // the first is field 3
	if len(fields) <= processor {
		return noCPU
	}
	return cpuNumber(fields[processor])
}

func cpuNumber(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return noCPU
	}
	return n
}

// iommuNone says that the device's DMA goes through no IOMMU.
const iommuNone = "none"

// iommuMode is the kind of the IOMMU domain that a device is in (Documentation/ABI/testing/sysfs-kernel-iommu_groups); dir is the device's
// folder in sysfs, which virtual devices have not.
func iommuMode(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "iommu_group", "type"))
	if errors.Is(err, fs.ErrNotExist) {
		return iommuNone, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the kind of its IOMMU domain: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
