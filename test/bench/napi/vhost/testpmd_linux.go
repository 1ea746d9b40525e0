package vhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// startTime bounds testpmd's start: DPDK's memory and two ports, emulated.
const startTime = 60 * time.Second

// testpmd is a running testpmd that forwards between the link and the TAP.
type testpmd struct {
	cmd    *exec.Cmd
	stdin  interface{ Close() error }
	said   *output.Buffer
	ended  chan struct{} // closed when it has, and status is set
	status error
	vhost  []int // threads that serve its rings
	napi   bool  // the kernel's word on its queue
}

// startTestpmd has testpmd open the TAP by name, under tapirctl exec where NAPI is wanted and under strip where not, and waits until
// the kernel shows the queue open.
func (s *setup) startTestpmd(ctx context.Context, napi bool) (*testpmd, error) {
	args := append([]string{"/proc/self/exe", stripCommand}, s.testpmdArgs()...)
	if napi {
		args = append([]string{filepath.Join(s.Bin, "tapirctl"), "exec", "--"}, s.testpmdArgs()...)
	}
	p := &testpmd{said: &output.Buffer{}, ended: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = p.said, p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	stdin, err := p.cmd.StdinPipe() // open: testpmd ends with it
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	started := make(chan error, 1)
	go func() {
		// The thread stays until testpmd has ended: the kernel sends Pdeathsig when the thread that forked ends.
		defer close(p.ended)
		p.status = node.In(s.sandbox, func() error {
			err := p.cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return p.cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("its queue is not open after %s", startTime))
	defer cancel()
	if err := s.waitForQueue(ctx, p); err != nil {
		return nil, errors.Join(fmt.Errorf("testpmd: %w: %s", err, lastLines(p.said)), p.stop())
	}
	if p.napi != napi {
		return nil, errors.Join(fmt.Errorf("testpmd's queue: want NAPI %v, the kernel says %v", napi, p.napi), p.stop())
	}
	return p, nil
}

// testpmdArgs have it die with its supervisor.
func (s *setup) testpmdArgs() []string {
	at := strconv.Itoa(s.cpus.testpmd)
	queue := strconv.Itoa(s.Queue)
	return []string{
		"setpriv", "--pdeathsig", "KILL", s.Testpmd, "--lcores=0@" + at + ",1@" + at, "--no-telemetry", "--no-pci", "--no-huge", "-m", "256", "--no-shconf",
		"--vdev=virtio_user0,path=" + device + ",iface=" + s.tap + ",queue_size=" + queue,
		"--vdev=net_af_packet0,iface=" + nearEnd + ",blocksz=65536,framesz=2048,framecnt=2048",
		"--", "--nb-cores=1", "--burst=64", "--txd=" + queue, "--rxd=" + queue, "--auto-start", "--total-num-mbufs=16384", "--forward-mode=io",
	}
}

// waitForQueue returns when tapirctl sees the queue open.
func (s *setup) waitForQueue(ctx context.Context, p *testpmd) error {
	for {
		q, err := s.queue()
		if err != nil {
			return err
		}
		if q.State == "enabled" && q.PID != 0 {
			p.napi = q.NAPI == "yes"
			if p.vhost, err = vhostThreads(q.PID); err != nil {
				return err
			}
			if len(p.vhost) > 0 {
				return nil
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended: %w", p.status)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// queueState is a row of "tapirctl queues -o json".
type queueState struct {
	State string `json:"state"`
	PID   int    `json:"pid"`
	NAPI  string `json:"napi"`
}

func (s *setup) queue() (queueState, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(s.Bin, "tapirctl"), "queues", "-o", "json", containerID+"/"+ifName)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return queueState{}, fmt.Errorf("tapirctl queues: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var rows []queueState
	if err := json.Unmarshal(stdout.Bytes(), &rows); err != nil {
		return queueState{}, fmt.Errorf("tapirctl queues: %w", err)
	}
	for _, q := range rows {
		if q.State == "enabled" {
			return q, nil
		}
	}
	return queueState{}, nil
}

// vhostThreads are those that serve the rings of the process: since Linux 6.4 threads of its own, before and with
// fork_from_owner_default=0 the kernel's. All are named vhost-PID.
func vhostThreads(pid int) ([]int, error) {
	name := "vhost-" + strconv.Itoa(pid)
	for _, pattern := range []string{fmt.Sprintf("/proc/%d/task/[0-9]*/comm", pid), "/proc/[0-9]*/comm"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		var tids []int
		for _, f := range files {
			comm, err := os.ReadFile(f)
			if err != nil || strings.TrimSpace(string(comm)) != name {
				continue // another's, or ended since
			}
			tid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				return nil, err
			}
			tids = append(tids, tid)
		}
		if len(tids) > 0 {
			return tids, nil
		}
	}
	return nil, nil
}

// stop ends testpmd and waits until its TAP is free.
func (p *testpmd) stop() error {
	err := unix.Kill(-p.cmd.Process.Pid, unix.SIGTERM)
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		err = errors.Join(err, unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL))
		<-p.ended
	}
	_ = p.stdin.Close() // nobody reads it any more
	return err
}

// lastLines is the end of what a process said.
func lastLines(said *output.Buffer) string {
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-24):], "; ")
}
