package harness

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options are what a cluster is made of.
type Options struct {
	Nodes     int    // default: 2
	Bin       string // folder of the programs of "make k8s"
	Images    string // folder of image archives, imported on every node
	Plugins   string // folder of the reference plugins, which every node has, as one of kubeadm's does
	ProxyMode string // nftables (default) or iptables
	// Prepare puts files on a node before it starts.
	Prepare func(node *Node) error
	// Patience bounds each wait; default: a minute and a half.
	Patience time.Duration
}

// Addresses of the machine's side of the nodes' link, where the control plane is, and ranges.
const (
	controlIPv4  = "10.200.0.1"
	controlIPv6  = "fd00:200::1"
	PodsIPv4     = "10.244.0.0/16"
	PodsIPv6     = "fd00:244::/48"
	servicesIPv4 = "10.96.0.0/16"
	servicesIPv6 = "fd00:96::/108"

	ServiceRanges = servicesIPv4 + "," + servicesIPv6
)

// Cluster is a running one.
type Cluster struct {
	Client kubernetes.Interface
	Nodes  []*Node
	Dir    string

	o      Options
	id     string // of cgroups and netns
	netns  string // name of the control plane's
	mu     sync.Mutex
	daemon []*exec.Cmd
}

// Up starts a cluster and returns when every node is registered: a node without a CNI configuration is not Ready. On an error nothing is left.
func Up(ctx context.Context, o Options) (c *Cluster, err error) {
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.ProxyMode == "" {
		o.ProxyMode = "nftables"
	}
	if o.Patience == 0 {
		o.Patience = 90 * time.Second
	}
	dir, err := os.MkdirTemp("", "tapir-cluster-*")
	if err != nil {
		return nil, err
	}
	c = &Cluster{o: o, Dir: dir, id: filepath.Base(dir), netns: "control"}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down())
			c = nil
		}
	}()
	for _, folder := range []*string{&c.o.Bin, &c.o.Images, &c.o.Plugins} {
		if *folder == "" {
			return c, errors.New("folders of programs, images and plugins: one is not given")
		}
		if *folder, err = filepath.Abs(*folder); err != nil {
			return c, err
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return c, err
	}
	if err := c.startControl(ctx); err != nil {
		return c, fmt.Errorf("control plane: %w", err)
	}
	for i := range o.Nodes {
		n, err := c.newNode(i + 1)
		if err != nil {
			return c, fmt.Errorf("node %d: %w", i+1, err)
		}
		c.Nodes = append(c.Nodes, n)
		if err := n.Start(); err != nil {
			return c, err
		}
	}
	return c, c.registered(ctx)
}

// Down ends everything. It may be called twice.
func (c *Cluster) Down() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.PowerCut(), n.remove())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.daemon {
		d := c.daemon[len(c.daemon)-1-i]
		_ = d.Process.Kill() // it may have ended
		_ = d.Wait()
	}
	c.daemon = nil
	if _, err := os.Stat("/run/netns/" + c.netns); err == nil {
		errs = append(errs, command("ip", "netns", "del", c.netns))
	}
	_ = unix.Unmount("/run/netns", 0) // ip(8) mounts it; it stays where somebody has other namespaces there
	// Never through a hierarchy that is still mounted.
	if err := c.unmountCgroups(); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, os.RemoveAll(c.Dir))
	return errors.Join(errs...)
}

// users are the tokens of the API server: name, group.
func (c *Cluster) tokens() string {
	lines := []string{
		"admintoken,admin,admin,system:masters", "kcmtoken,system:kube-controller-manager,kcm", "schedulertoken,system:kube-scheduler,scheduler",
		"proxytoken,system:kube-proxy,proxy,system:node-proxier",
	}
	for i := range c.o.Nodes {
		lines = append(lines, fmt.Sprintf("node%dtoken,system:node:node%d,node%d,system:nodes", i+1, i+1, i+1))
	}
	return strings.Join(lines, "\n") + "\n"
}

func kubeconfig(token string) string {
	return Kubeconfig("https://"+net.JoinHostPort(controlIPv4, "6443"), token)
}

// Kubeconfig is the text of one for a server and a token.
func Kubeconfig(server, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server, token)
}

// Bin is the folder of the cluster's programs.
func (c *Cluster) Bin() string { return c.o.Bin }

// Kubeconfig is the path of the administrator's.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "admin.kubeconfig") }

func (c *Cluster) startControl(ctx context.Context) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"sa.key":               string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"sa.pub":               string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"tokens.csv":           c.tokens(),
		"admin.kubeconfig":     kubeconfig("admintoken"),
		"kcm.kubeconfig":       kubeconfig("kcmtoken"),
		"scheduler.kubeconfig": kubeconfig("schedulertoken"),
		"proxy.kubeconfig":     kubeconfig("admintoken"),
	} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	if err := commands(
		"ip netns add "+c.netns, "ip -n control link set lo up", "ip -n control link add br0 type bridge", "ip -n control addr add "+controlIPv4+"/24 dev br0",
		"ip -n control -6 addr add "+controlIPv6+"/64 dev br0 nodad", "ip -n control link set br0 up",
		// What is beyond the nodes: a host that knows no pod.
		"ip netns exec control sysctl -qw net.ipv4.ip_forward=0",
	); err != nil {
		return err
	}
	if err := c.control("etcd", "--data-dir", "etcd", "--unsafe-no-fsync", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls",
		"http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"); err != nil {
		return err
	}
	if err := c.control("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--advertise-address="+controlIPv4, "--cert-dir=certs",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key",
		"--service-cluster-ip-range="+servicesIPv4+","+servicesIPv6, "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
		"--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.Until(ctx, "the API server", func(ctx context.Context) error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	if err := c.control("kube-controller-manager", "--kubeconfig=kcm.kubeconfig", "--service-account-private-key-file=sa.key", "--use-service-account-credentials=true",
		"--leader-elect=false", "--allocate-node-cidrs=true", "--cluster-cidr="+PodsIPv4+","+PodsIPv6, "--service-cluster-ip-range="+servicesIPv4+","+servicesIPv6,
		"--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64", "--node-monitor-grace-period=20s", "--root-ca-file=certs/apiserver.crt"); err != nil {
		return err
	}
	return c.control("kube-scheduler", "--kubeconfig=scheduler.kubeconfig", "--leader-elect=false")
}

// control starts a program of the control plane in its netns and folder. It dies with this process.
func (c *Cluster) control(name string, args ...string) error {
	log, err := os.Create(filepath.Join(c.Dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + c.netns, filepath.Join(c.o.Bin, name)}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := startFromMain(cmd); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemon = append(c.daemon, cmd)
	return nil
}

// connect makes the client, which dials from the control plane's netns.
func (c *Cluster) connect() error {
	client, err := kubernetes.NewForConfig(c.Config())
	c.Client = client
	return err
}

// Config is the administrator's.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(controlIPv4, "6443"), BearerToken: "admintoken", QPS: 200, Burst: 400,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: c.Dial,
	}
}

// Until asks until f gives nil, and gives f's last error where it did not in time.
func (c *Cluster) Until(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Patience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not after %s: %w; logs are in %s", what, c.o.Patience, err, c.Dir)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// commands runs each line.
func commands(lines ...string) error {
	for _, line := range lines {
		if err := command(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func command(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Kubectl runs kubectl as the administrator, with stdin, and gives what it wrote.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	all := append([]string{"--net=/run/netns/" + c.netns, filepath.Join(c.o.Bin, "kubectl"), "--kubeconfig=" + c.Kubeconfig()}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", all...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
