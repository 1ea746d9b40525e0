package harness

import (
	"context"
	_ "embed" // what runs as a node
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed node.sh
var nodeScript []byte

// Node is a machine of the cluster.
type Node struct {
	Name string
	IPv4 string
	IPv6 string
	Dir  string // its files: etc-cni, opt-cni, var-log, logs of its programs

	c       *Cluster
	netns   string
	cmd     *exec.Cmd
	cgroups []string // folders where its processes begin, in the hierarchies that the harness mounted
}

// CNIBin is the node's /opt/cni/bin.
func (n *Node) CNIBin() string { return filepath.Join(n.Dir, "opt-cni") }

// CNIConf is the node's /etc/cni/net.d.
func (n *Node) CNIConf() string { return filepath.Join(n.Dir, "etc-cni") }

// NetnsPath is the node's network namespace.
func (n *Node) NetnsPath() string { return "/run/netns/" + n.netns }

func (c *Cluster) newNode(number int) (*Node, error) {
	name := fmt.Sprintf("node%d", number)
	n := &Node{Name: name, c: c, netns: name, Dir: filepath.Join(c.Dir, name), IPv4: fmt.Sprintf("10.200.0.1%d", number), IPv6: fmt.Sprintf("fd00:200::1%d", number)}
	for _, dir := range []string{"var-lib-kubelet", "var-lib-containerd", "var-lib-cni", "etc-cni", "opt-cni", "var-log", "tunables"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	err := commands(
		"ip netns add "+name, "ip -n control link add v"+name+" type veth peer name eth0 netns "+name, "ip -n control link set v"+name+" master br0 up",
		"ip -n "+name+" addr add "+n.IPv4+"/24 dev eth0", "ip -n "+name+" -6 addr add "+n.IPv6+"/64 dev eth0 nodad", "ip -n "+name+" link set eth0 up",
		"ip -n "+name+" link set lo up", "ip -n "+name+" route add default via "+controlIPv4, "ip -n "+name+" -6 route add default via "+controlIPv6,
	)
	if err != nil {
		return n, err
	}
	for file, content := range map[string]string{
		"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig, "kubeconfig": kubeconfig(name + "token"), "node.sh": string(nodeScript),
		"kube-proxy.yaml": fmt.Sprintf(proxyConfig, c.o.ProxyMode, PodsIPv4, PodsIPv6, filepath.Join(c.Dir, "proxy.kubeconfig")),
	} {
		if err := os.WriteFile(filepath.Join(n.Dir, file), []byte(content), 0o600); err != nil {
			return n, err
		}
	}
	if err := n.installPrograms(c.o.Plugins); err != nil {
		return n, err
	}
	if c.o.Prepare != nil {
		return n, c.o.Prepare(n)
	}
	return n, nil
}

const containerdConfig = `version = 4
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.tapir]
  runtime_type = "io.containerd.runc.v2"
  cni_conf_dir = "/etc/cni/net.d/tapir.d"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
resolvConf: ""
enforceNodeAllocatable: []
oomScoreAdj: 0
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "50Mi", nodefs.available: "1%", nodefs.inodesFree: "1%", imagefs.available: "1%"}
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: %s,%s
clientConnection: {kubeconfig: %q}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// Start turns the node on.
func (n *Node) Start() error {
	if n.cmd != nil {
		return fmt.Errorf("%s is on", n.Name)
	}
	if err := n.makeCgroups(); err != nil {
		return err
	}
	v1 := "yes"
	if _, err := os.Stat(filepath.Join(cgroupRoot(n.c), "cgroup.controllers")); err == nil {
		v1 = ""
	}
	log, err := os.OpenFile(filepath.Join(n.Dir, "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	enter := "for c in " + strings.Join(n.cgroups, " ") + "; do echo $$ >$c/cgroup.procs; done; exec "
	args := []string{
		"nsenter", "--net=" + n.NetnsPath(), "unshare", "--mount", "--uts", "--ipc", "--cgroup", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private",
		"bash", filepath.Join(n.Dir, "node.sh"), n.Name, n.Dir, n.c.o.Bin, n.c.o.Images,
	}
	cmd := exec.Command("bash", "-c", enter+strings.Join(args, " "))
	cmd.Env = append(os.Environ(), "CGROUP_V1="+v1, "NODE_IP="+n.IPv4+","+n.IPv6)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := os.Remove(filepath.Join(n.Dir, "inside")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := startFromMain(cmd); err != nil {
		return err
	}
	n.cmd = cmd
	if err := n.mounted(); err != nil {
		return err
	}
	pid, err := n.first()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.Dir, "pid"), []byte(strconv.Itoa(pid)), 0o644) // for people
}

// mounted waits until the node is in its own mounts.
func (n *Node) mounted() error {
	return n.c.Until(context.Background(), n.Name+"'s mounts", func(context.Context) error {
		_, err := os.Stat(filepath.Join(n.Dir, "inside"))
		return err
	})
}

// PowerCut kills all of the node's processes at once. Its disk stays.
func (n *Node) PowerCut() error {
	if n.cmd == nil {
		return nil
	}
	_ = n.cmd.Process.Kill() // it may have ended
	_ = n.cmd.Wait()
	n.cmd = nil
	// The kernel kills the PID namespace's other processes, and the mounts go with them.
	return n.c.Until(context.Background(), n.Name+"'s end", func(context.Context) error { return n.removeCgroups() })
}

func (n *Node) remove() error {
	return command("ip", "netns", "del", n.netns)
}

// first is the PID of the node's init, in our PID namespace.
func (n *Node) first() (int, error) {
	if n.cmd == nil {
		return 0, fmt.Errorf("%s is off", n.Name)
	}
	pid := n.cmd.Process.Pid
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Run runs a program on the node, in its namespaces, and gives what it wrote to standard output.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	pid, err := n.first()
	if err != nil {
		return "", err
	}
	enter := append([]string{"-t", strconv.Itoa(pid), "--mount", "--net", "--pid", "--uts", "--ipc", "--", "env", "PATH=" + n.c.o.Bin + ":" + os.Getenv("PATH")}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", enter...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("on %s: %s: %w: %s", n.Name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()+string(out)))
	}
	return string(out), err
}

// RestartContainerd kills it; the node starts it again.
func (n *Node) RestartContainerd(ctx context.Context) error {
	_, err := n.Run(ctx, "pkill", "-KILL", "-x", "containerd")
	return err
}

// Dial connects from the node.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(ctx, n.NetnsPath(), network, address)
}

func (c *Cluster) registered(ctx context.Context) error {
	if err := c.Until(ctx, "nodes", func(ctx context.Context) error {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(nodes.Items) != len(c.Nodes) {
			return fmt.Errorf("want %d nodes, got %d", len(c.Nodes), len(nodes.Items))
		}
		for _, n := range nodes.Items {
			if len(n.Spec.PodCIDRs) != 2 {
				return fmt.Errorf("node %s: want two podCIDRs, got %v", n.Name, n.Spec.PodCIDRs)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	// Pods are refused before it is there.
	return c.Until(ctx, "the default service account", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Ready waits until every node that is on is Ready, and gives how long that took.
func (c *Cluster) Ready(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	err := c.Until(ctx, "nodes to be Ready", func(ctx context.Context) error {
		for _, n := range c.Nodes {
			if n.cmd == nil {
				continue
			}
			if err := c.NodeReady(ctx, n.Name); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(began), err
}

// NodeReady gives an error where the node is not Ready, with the kubelet's reason.
func (c *Cluster) NodeReady(ctx context.Context, name string) error {
	n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	reason := "nothing"
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i >= 0 {
		if n.Status.Conditions[i].Status == corev1.ConditionTrue {
			return nil
		}
		reason = n.Status.Conditions[i].Message
	}
	return fmt.Errorf("node %s is not Ready: %s", name, reason)
}
