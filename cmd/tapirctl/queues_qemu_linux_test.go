package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// startQEMU starts an unmodified QEMU that lets no CPU run, in the attachment's netns.
func startQEMU(t *testing.T, a state.Attachment, files []*os.File, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("qemu-system-x86_64", append([]string{"-M", "microvm", "-accel", "tcg", "-nodefaults", "-display", "none", "-S"}, args...)...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	testnode.In(t, a.Netns, func() {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

// duplicates are the descriptors as files that the test closes.
func duplicates(t *testing.T, fds []int) []*os.File {
	t.Helper()
	var files []*os.File
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "queue")
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	return files
}

// TestQueuesOfQEMU starts QEMU as guest-config says, and on queues that were opened for it.
func TestQueuesOfQEMU(t *testing.T) {
	testnode.Require(t, "root", "qemu")
	dir := t.TempDir()
	byName, byFD := sandbox(t, dir, "aaaa", 2000071, 2), sandbox(t, dir, "bbbb", 2000072, 2)
	guest, err := guestconfig.FromAttachment(byName)
	if err != nil {
		t.Fatal(err)
	}
	args, err := guest.QEMU(guestconfig.QEMUOptions{Bus: guestconfig.BusMMIO})
	if err != nil {
		t.Fatal(err)
	}
	name := startQEMU(t, byName, nil, args...)
	q := openTAP(t, byFD, 2, true)
	fds := startQEMU(t, byFD, duplicates(t, q.FDs()), "-netdev", "tap,id=net0,vhost=off,fds=3:4", "-device", "virtio-net-device,netdev=net0,mq=on")

	want := map[int]string{name.Process.Pid: "by name no", fds.Process.Pid: "handed over yes"}
	var rows []queueRow
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		rows = rowsOf(t, dir)
		count := map[int]int{}
		for _, r := range rows {
			if r.Program == "qemu-system-x86_64" {
				count[r.PID]++
			}
		}
		if count[name.Process.Pid] == 2 && count[fds.Process.Pid] == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("QEMU did not open its queues:\n%s", command(t, "queues", "--state-dir", dir))
		}
	}
	for _, r := range rows {
		if r.PID == os.Getpid() {
			continue // the opener's own descriptors
		}
		if got := r.Opened + " " + r.NAPI; got != want[r.PID] || r.VnetHdr == 0 || !r.MultiQueue || r.TAP != tapName(r, byName, byFD) {
			t.Errorf("want %q with a vnet header on a multi-queue TAP, got %+v", want[r.PID], r)
		}
	}
	found, err := queueFindings(t.Context(), &options{stateDirs: []string{dir}}, "aaaa")
	if err != nil {
		t.Fatal(err)
	}
	want0 := fmt.Sprintf("queues 0, 1 of pid %d (qemu-system-x86_64): no NAPI: it opened the TAP by name", name.Process.Pid)
	if len(found) != 1 || !strings.HasPrefix(found[0].Detail, want0) || !strings.Contains(found[0].Advice, "tapirctl exec") {
		t.Errorf("doctor: want %q and tapirctl exec as advice, got %+v", want0, found)
	}
	if t.Failed() {
		t.Log("\n" + command(t, "queues", "--state-dir", dir))
	}
}

// tapName is the TAP of the row's attachment.
func tapName(r queueRow, all ...state.Attachment) string {
	for _, a := range all {
		if a.Key == r.Key {
			return a.TAP.Name
		}
	}
	return ""
}
