package harness

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// A child with Pdeathsig dies with the thread that started it: this goroutine's thread lives as long as the process.
var starts = func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
}()

func startFromMain(cmd *exec.Cmd) error {
	result := make(chan error)
	starts <- func() { result <- cmd.Start() }
	return <-result
}

// Dial connects from the control plane's netns, which stands for a machine beside the nodes.
func (c *Cluster) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(ctx, "/run/netns/"+c.netns, network, address)
}

func dialIn(ctx context.Context, netns, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = enter(netns); err != nil {
			return
		}
		// FallbackDelay < 0: a second attempt would be another goroutine's, in another netns.
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, address)
	}()
	<-done
	return conn, err
}

// Carry connects conn, from wherever it is, to the API server, until either side ends.
func (c *Cluster) Carry(conn net.Conn) {
	defer conn.Close()
	server, err := c.Dial(context.Background(), "tcp", net.JoinHostPort(controlIPv4, "6443"))
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, conn) // the other side's end ends both
	}()
	_, _ = io.Copy(conn, server)
}

// Listen listens in the control plane's netns.
func (c *Cluster) Listen(ctx context.Context, network, address string) (listener net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, as in dialIn
		if err = enter("/run/netns/" + c.netns); err == nil {
			listener, err = (&net.ListenConfig{}).Listen(ctx, network, address)
		}
	}()
	<-done
	return listener, err
}

// enter puts this thread into a netns.
func enter(netns string) error {
	ns, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
}
