// Command updown keeps a cluster of package harness for a person:
//
//	updown -dir DIR up        start one, and say how to use it; it stays until
//	updown -dir DIR down      ends it and removes DIR
//
// DIR gets kubeconfig (of a port on the machine's loopback), the scripts kubectl and on ("on node1 ip address"), and logs, the cluster's work folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tapir-cni/tapir/test/cluster/harness"
	"golang.org/x/sys/unix"
)

type options struct {
	dir string
	cni string
	harness.Options
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "bin/cluster", "`folder` by which the cluster is known")
	flag.StringVar(&o.cni, "cni", "none", "`none`, or bridge")
	flag.IntVar(&o.Nodes, "nodes", 2, "`number` of nodes")
	flag.StringVar(&o.Bin, "bin", "bin/k8s", "`folder` that \"make k8s\" made")
	flag.StringVar(&o.Images, "images", "bin/images", "`folder` of image archives")
	flag.StringVar(&o.Plugins, "plugins", "bin/refplugins", "`folder` of the reference plugins")
	flag.StringVar(&o.ProxyMode, "proxy-mode", "nftables", "kube-proxy's `mode`: nftables or iptables")
	flag.Parse()
	if err := o.run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "updown:", err)
		os.Exit(1)
	}
}

func (o *options) run(verb string) (err error) {
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	switch verb {
	case "up":
		return o.up()
	case "down":
		return o.down()
	case "keep": // up's child, in namespaces of its own
		return o.keep()
	}
	return fmt.Errorf("want up or down, got %q", verb)
}

func (o *options) file(name string) string { return filepath.Join(o.dir, name) }

// up starts a child in new namespaces, gives it a listener of this one, and waits until it says that the cluster is there.
func (o *options) up() error {
	if pid, err := o.keeper(); err == nil {
		return fmt.Errorf("%s: a cluster is up, kept by process %d", o.dir, pid)
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer socket.Close()
	log, err := os.Create(o.file("keeper.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, said, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", append(os.Args[1:len(os.Args)-1], "keep")...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{socket, said}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	said.Close()
	text := make([]byte, 4096)
	n, _ := ready.Read(text) // nothing where the child ended
	if n == 0 {
		_ = cmd.Wait()
		return fmt.Errorf("the cluster did not start; see %s", o.file("keeper.log"))
	}
	fmt.Print(string(text[:n]))
	return nil
}

// keeper is the process that holds the cluster.
func (o *options) keeper() (int, error) {
	data, err := os.ReadFile(o.file("pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, err
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.HasSuffix(string(line), "\x00keep\x00") {
		return 0, errors.New("it has ended")
	}
	return pid, nil
}

func (o *options) down() error {
	pid, err := o.keeper()
	if err != nil {
		return fmt.Errorf("%s: no cluster is up: %w", o.dir, err)
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return err
	}
	for range 600 {
		if _, err := o.keeper(); err != nil {
			return os.RemoveAll(o.dir)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("process %d did not end; see %s", pid, o.file("keeper.log"))
}

func (o *options) keep() error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	for _, m := range []struct{ kind, at string }{{"", "/"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}} {
		flags := uintptr(0)
		if m.kind == "" {
			flags = unix.MS_REC | unix.MS_PRIVATE
		}
		if err := unix.Mount("updown", m.at, m.kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	c, err := harness.Up(ctx, o.Options)
	if err != nil {
		return err
	}
	err = o.serve(ctx, c, listener)
	return errors.Join(err, c.Down())
}

// serve writes what a person uses, says so, and carries connections to the API server until ctx ends.
func (o *options) serve(ctx context.Context, c *harness.Cluster, listener net.Listener) error {
	if o.cni == "bridge" {
		if err := c.InstallByHand(ctx, harness.Bridge); err != nil {
			return err
		}
	}
	pid := strconv.Itoa(os.Getpid())
	kubeconfig := harness.Kubeconfig("https://"+listener.Addr().String(), "admintoken")
	scripts := map[string]string{
		"kubectl": "#!/bin/bash\nexec " + c.Bin() + "/kubectl --kubeconfig=" + o.file("kubeconfig") + " \"$@\"\n",
		"on": "#!/bin/bash\n# on NODE PROGRAM [ARG...]: run a program on the node\npid=$(cat " + c.Dir + "/$1/pid) || exit\nshift\n" +
			"exec nsenter -t \"$pid\" --mount --net --pid --uts --ipc -- env PATH=" + c.Bin() + ":$PATH \"$@\"\n",
		"kubeconfig": kubeconfig, "pid": pid,
	}
	for name, text := range scripts {
		if err := os.WriteFile(o.file(name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	_ = os.Remove(o.file("logs"))
	if err := os.Symlink(c.Dir, o.file("logs")); err != nil {
		return err
	}
	said := os.NewFile(4, "said")
	fmt.Fprintf(said, "%d nodes are registered, CNI: %s.\n  %s get nodes\n  %s node1 ip address\n  logs: %s/*.log and */*.log\n",
		len(c.Nodes), o.cni, o.file("kubectl"), o.file("on"), o.file("logs"))
	said.Close()
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		conn, err := listener.Accept()
		if err != nil {
			return nil //nolint:nilerr // the end of the context closed it
		}
		go c.Carry(conn)
	}
}
