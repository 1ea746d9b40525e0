package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
)

// Install is what installs tapir, as this package wants it. *install.Installer is one.
type Install interface {
	Ready() error
	Changed() <-chan struct{}
}

// Config is what a [Cluster] is made of.
type Config struct {
	Options
	Client  kubernetes.Interface // nil: of Options.Kubeconfig
	Install Install              // nil: nothing is installed
	// Attachments and Flag keep pods that a NetworkPolicy selects off the shortcut; nil: nobody does.
	Attachments Attachments
	Flag        FlagFunc
	Refused     RefusedFunc // nil: nothing is
	Logger      *slog.Logger
}

// Cluster is the part.
type Cluster struct {
	c      Config
	log    *slog.Logger
	except []netip.Prefix

	mu      sync.Mutex
	peers   map[string]peer
	synced  bool
	cannot  []missing
	failure string
	ranges  chan struct{}

	wake   chan struct{} // something is to be looked at
	events record.EventRecorder
}

// New makes a Cluster. It touches nothing.
func New(c Config) (*Cluster, error) {
	c.Node = cmp.Or(c.Node, os.Getenv(NodeNameEnv))
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	except, err := parsePrefixes(c.NonMasqueradeCIDRs)
	if err != nil {
		return nil, fmt.Errorf("nonMasqueradeCIDRs: %w", err)
	}
	return &Cluster{
		c: c, log: c.Logger, except: except, peers: map[string]peer{}, ranges: make(chan struct{}, 1), wake: make(chan struct{}, 1), failure: "not begun",
	}, nil
}

// SetAttachments gives the node's attachments, what flags them and what says which wishes are refused, before Run.
func (c *Cluster) SetAttachments(all Attachments, flag FlagFunc, refused RefusedFunc) {
	c.c.Attachments, c.c.Flag, c.c.Refused = all, flag, refused
}

// SetInstall gives the installer, which wants the Cluster as its ranges, before Run.
func (c *Cluster) SetInstall(i Install) { c.c.Install = i }

// Ranges are the own Node's podCIDRs; none while they are not known.
func (c *Cluster) Ranges() []netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.peers[c.c.Node].ranges)
}

// Changed gets an element when Ranges are others.
func (c *Cluster) Changed() <-chan struct{} { return c.ranges }

// Ready is nil where the node's network is as the cluster wants it. Nodes that no route can lead to are no reason: Text names them.
func (c *Cluster) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != "" {
		return errors.New(c.failure)
	}
	return nil
}

// Unreachable are the nodes that no route can lead to, each with the reason.
func (c *Cluster) Unreachable() (list []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.cannot {
		list = append(list, fmt.Sprintf("node %s (%s): %s", m.node, m.to, m.why))
	}
	return list
}

func (c *Cluster) client() (kubernetes.Interface, error) {
	if c.c.Client != nil {
		return c.c.Client, nil
	}
	var config *rest.Config
	var err error
	if c.c.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", c.c.Kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "tapird"
	return kubernetes.NewForConfig(config)
}

// slim drops of a Node what nobody here reads: a cluster of thousands is kept in memory.
func slim(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}, nil
}

// Pauses: changes that follow each other closely are made together, and what failed waits.
const (
	settle     = 50 * time.Millisecond
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// Run does the part's work until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "tapird", Host: c.c.Node})

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	nodes := factory.Core().V1().Nodes().Informer()
	_, err = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.take(o) },
		UpdateFunc: func(_, o any) { c.take(o) },
		DeleteFunc: c.drop,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		return ctx.Err()
	}
	c.mu.Lock()
	c.synced = true
	c.mu.Unlock()
	c.poke()
	lost, err := c.watchRoutes(ctx)
	if err != nil {
		return err
	}
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	failed := make(chan error, 1)
	following.Go(func() { c.tellRefusals(ctx, client) })
	following.Go(func() {
		if cause := c.followPolicies(ctx, client); ctx.Err() == nil {
			failed <- fmt.Errorf("follow NetworkPolicies: %w", cause)
			cancel()
		}
	})
	err = c.serve(ctx, client, lost)
	select {
	case cause := <-failed:
		return cause
	default:
		return err
	}
}

// serve makes the node's network what the picture says, whenever that or the network is another.
func (c *Cluster) serve(ctx context.Context, client kubernetes.Interface, lost <-chan struct{}) error {
	var installed <-chan struct{}
	if c.c.Install != nil {
		installed = c.c.Install.Changed()
	}
	pause := firstPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
			timer.Reset(settle)
			continue
		case <-lost:
			timer.Reset(settle)
			continue
		case <-installed:
		case <-timer.C:
		}
		err := errors.Join(c.apply(), c.announce(ctx, client))
		c.mu.Lock()
		c.failure = ""
		if err != nil {
			c.failure = err.Error()
		}
		c.mu.Unlock()
		if err == nil {
			pause = firstPause
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.log.Warn("the node's part in the cluster is not right; trying again", "error", err, "after", pause)
		timer.Reset(pause)
		pause = min(2*pause, lastPause)
	}
}

func (c *Cluster) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Cluster) take(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	p := peerOf(n)
	c.mu.Lock()
	was, had := c.peers[p.name]
	c.peers[p.name] = p
	c.mu.Unlock()
	if had && slices.Equal(was.ranges, p.ranges) && slices.Equal(was.addresses, p.addresses) {
		return
	}
	if p.name == c.c.Node && !slices.Equal(was.ranges, p.ranges) {
		c.log.Info("the node's ranges", "ranges", p.ranges)
		select {
		case c.ranges <- struct{}{}:
		default:
		}
	}
	c.poke()
}

func (c *Cluster) drop(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.peers, n.Name)
	c.mu.Unlock()
	c.poke()
}

// apply makes routes and masquerade. Before all Nodes were seen it does nothing: what is there may be of an earlier tapird and right.
func (c *Cluster) apply() error {
	c.mu.Lock()
	peers, synced := maps.Clone(c.peers), c.synced
	c.mu.Unlock()
	if !synced {
		return errors.New("the Nodes are not known yet")
	}
	var errs []error
	wanted, lacking := hops(peers, c.c.Node)
	if c.c.NoRoutes {
		wanted, lacking = nil, nil
	}
	changed, cannot, err := syncRoutes(wanted)
	if err != nil {
		errs = append(errs, err)
	}
	if changed > 0 {
		c.log.Info("routes to other nodes", "changed", changed, "routes", len(wanted))
	}
	for _, h := range lacking {
		cannot = append(cannot, missing{h, "it has no InternalIP of this family"})
	}
	c.tell(cannot)
	own := peers[c.c.Node].ranges
	if !c.c.Masquerade {
		own = nil
	}
	errs = append(errs, syncMasquerade(own, append(allRanges(peers), c.except...)))
	return errors.Join(errs...)
}

// tell says which nodes are out of reach, each once.
func (c *Cluster) tell(cannot []missing) {
	c.mu.Lock()
	known := c.cannot
	c.cannot = cannot
	c.mu.Unlock()
	for _, m := range cannot {
		if slices.Contains(known, m) {
			continue
		}
		c.log.Error("no route leads to the pods of a node", "node", m.node, "range", m.to, "reason", m.why)
		c.events.Eventf(&corev1.ObjectReference{Kind: "Node", Name: c.c.Node, UID: "", APIVersion: "v1"}, corev1.EventTypeWarning, "NodeUnreachable",
			"no route leads from here to the pods of node %s (%s): %s", m.node, m.to, m.why)
	}
}

// watchRoutes tells when a route of ours was removed, or a device that routes lead through came or went.
func (c *Cluster) watchRoutes(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.RouteUpdate, 64)
	lost := make(chan struct{}, 1)
	poke := func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	}
	err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: func(err error) {
		if ctx.Err() == nil {
			c.log.Warn("messages of routes were lost; looking at all", "error", err)
			poke()
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	go func() {
		for u := range updates {
			// Our own changes are messages too; they settle, since nothing is left to change then.
			if u.Protocol == RouteProtocol && u.Type == unix.RTM_DELROUTE || u.Type == unix.RTM_NEWROUTE && u.Protocol == unix.RTPROT_KERNEL {
				poke()
			}
		}
		if ctx.Err() == nil {
			poke()
		}
	}()
	return lost, nil
}

// Plan says what Run would do with what it can know without the API server.
func (c *Cluster) Plan(_ context.Context, out io.Writer) error {
	_, err := fmt.Fprintf(out, "cluster: node %s: routes %t, masquerade %t\n", c.c.Node, !c.c.NoRoutes, c.c.Masquerade)
	return err
}
