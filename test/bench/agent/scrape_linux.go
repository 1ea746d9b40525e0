package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// nodeExporter is one that runs in a netns of its own.
type nodeExporter struct {
	url      string
	cmd      *exec.Cmd
	log      output.Buffer
	standIns []*tap.Queues
}

// startNodeExporter makes TAPs in one netns, some of them attached, and a node_exporter there. Its sysfs must show that netns, so that it is
// started behind a shell that mounts one; its socket is one of this netns, handed over as a service manager does (sd_listen_fds(3)).
func startNodeExporter(n *node.Node, path string, taps, attached int) (e *nodeExporter, err error) {
	if path, err = exec.LookPath(path); err != nil {
		return nil, fmt.Errorf("node_exporter: %w; \"make bench-agent\" builds it", err)
	}
	netns, err := n.NewNetns()
	if err != nil {
		return nil, err
	}
	progress("crowd: %d TAPs in one netns", taps)
	err = node.In(netns, func() error {
		for i := range taps {
			if err := tap.Create(tap.Spec{Name: fmt.Sprintf("tap%d", i), Queues: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	e = &nodeExporter{}
	for i := range attached {
		q, openErr := tap.OpenQueues(tap.QueueOptions{Netns: netns, Name: fmt.Sprintf("tap%d", i), Count: 1, NAPI: true})
		if openErr != nil {
			return nil, openErr
		}
		e.standIns = append(e.standIns, q)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	e.url = "http://" + l.Addr().String()
	const script = `mount -t sysfs bench /sys && LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"`
	e.cmd = exec.Command("sh", "-c", script, "sh", path, "--web.systemd-socket", "--collector.disable-defaults", "--collector.netclass", "--collector.netdev", "--log.level=warn")
	e.cmd.ExtraFiles = []*os.File{file}
	e.cmd.Stderr = &e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS} // its mounts are its own
	started := make(chan error)
	go func() {
		// The thread stays in that netns, and ends with the goroutine.
		runtime.LockOSThread()
		ns, err := os.Open(netns)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = e.cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start node_exporter: %w", err)
	}
	return e, nil
}

func (e *nodeExporter) stop() error {
	err := e.cmd.Process.Kill()
	_ = e.cmd.Wait() // it was killed
	for _, q := range e.standIns {
		err = errors.Join(err, q.Close())
	}
	return err
}

// scrapeInTurn scrapes both, one after the other; what they gave the first time is not among the times, in ms. Both are to have told of the TAPs.
func scrapeInTurn(ctx context.Context, own, other string, count int) (mine, theirs goal.Sample, a answer, err error) {
	for i := range count + 1 {
		took, told, n, err := scrape(ctx, own)
		if err == nil && !strings.Contains(told, "\ntapir_tap_ring_frames{") {
			err = errors.New("tapird says nothing of a TAP")
		}
		if err != nil {
			return nil, nil, a, err
		}
		tookOther, text, _, err := scrape(ctx, other)
		if err == nil && (!strings.Contains(text, `node_network_info{`) || !strings.Contains(text, `node_network_receive_bytes_total{device="tap`)) {
			err = errors.New("node_exporter says nothing of a TAP")
		}
		if err != nil {
			return nil, nil, a, err
		}
		a.size, a.series = n, strings.Count(told, "\n")-strings.Count(told, "\n# ")
		if a.sampleMS, err = sampleMS(told); err != nil {
			return nil, nil, a, err
		}
		if i > 0 {
			mine, theirs = append(mine, milliseconds(took)), append(theirs, milliseconds(tookOther))
		}
		time.Sleep(300 * time.Millisecond) // tapird gives a sample twice that is younger
	}
	return mine, theirs, a, nil
}

// An answer is the last of tapird's.
type answer struct {
	size     int // bytes, compressed
	series   int
	sampleMS float64 // of its time, what the sample took
}

// sampleMS reads what a scrape says of itself.
func sampleMS(text string) (float64, error) {
	_, rest, _ := strings.Cut(text, "\ntapir_agent_sample_duration_seconds ")
	value, _, _ := strings.Cut(rest, "\n")
	seconds, err := strconv.ParseFloat(value, 64)
	return seconds * 1000, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// scrape asks as Prometheus does, with gzip, and gives the text and its size on the wire. Unpacking is not timed.
func scrape(ctx context.Context, url string) (took time.Duration, text string, size int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, "", 0, err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	var body []byte
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		begin := time.Now()
		answer, askErr := http.DefaultTransport.RoundTrip(r)
		if askErr != nil {
			if time.Now().Before(until) && errors.Is(askErr, unix.ECONNREFUSED) {
				continue
			}
			return 0, "", 0, fmt.Errorf("scrape %s: %w", url, askErr)
		}
		body, err = io.ReadAll(answer.Body)
		took = time.Since(begin)
		if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != http.StatusOK {
			return 0, "", 0, fmt.Errorf("scrape %s: %s, %w", url, answer.Status, err)
		}
		break
	}
	text, err = unpack(body)
	return took, text, len(body), err
}

// residentMB is what a process has of the memory, in 10^6 bytes (proc(5), VmRSS).
func residentMB(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if rest, ok := strings.CutPrefix(string(line), "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}

// idleCPU is how much of a CPU a process uses while it is left alone, in percent.
func idleCPU(ctx context.Context, pid int, d time.Duration) (float64, error) {
	before, err := cpuTime(pid)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
	}
	after, err := cpuTime(pid)
	return 100 * (after - before).Seconds() / time.Since(begin).Seconds(), err
}

// cpuTime is what all threads of a process had of the CPUs (first field of schedstat, Documentation/scheduler/sched-stats.rst). Those that
// ended are missing; tapird's stay.
func cpuTime(pid int) (sum time.Duration, err error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
