package quickstart

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
	"github.com/tapir-cni/tapir/internal/microvm/ping"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
)

const (
	pingCount     = 3
	pingTimeout   = 15 * time.Second
	transferBytes = 16 << 20
	transferLimit = time.Minute
)

// place is somewhere that pings and streams go from and to. Guests have a vm, the node and the world have none.
type place struct {
	name  string
	addrs []netip.Addr // IPv4, IPv6
	vm    *microvm.VM
}

// measurePings pings from a to b over both families, with small and large payloads. Any lost answer is an error.
func measurePings(ctx context.Context, r *Report, a, b place) error {
	for _, to := range b.addrs {
		for _, size := range []int{56, 8000} {
			args := agentapi.PingArgs{Addr: to.String(), Size: size, Count: pingCount, Timeout: pingTimeout}
			var res agentapi.PingResult
			var err error
			if a.vm != nil {
				res, err = a.vm.Ping(ctx, to, size, pingCount, pingTimeout)
			} else {
				res, err = ping.Run(ctx, args)
			}
			if err == nil && (res.Received != pingCount || res.Sent != pingCount) {
				err = fmt.Errorf("%d of %d answered", res.Received, res.Sent)
			}
			if err != nil {
				return fmt.Errorf("ping from %s to %s (%s), %d bytes: %w", a.name, b.name, to, size, err)
			}
			r.Pings = append(r.Pings, Ping{
				From: a.name, To: b.name, Addr: to.String(), Size: size, Sent: res.Sent, Received: res.Received, Avg: res.Avg,
			})
		}
	}
	return nil
}

// measureTransfers sends a stream from a to b over both families. A byte that is not what was sent is an error.
func measureTransfers(ctx context.Context, r *Report, a, b place) error {
	for i, family := range []string{"IPv4", "IPv6"} {
		seed := uint64(len(r.Transfers) + 1)
		res, err := transfer(ctx, a, b, i, seed)
		if err == nil {
			err = res.Err(transferBytes)
		}
		if err != nil {
			return fmt.Errorf("stream from %s to %s, %s: %w", a.name, b.name, family, err)
		}
		peer, _, err := net.SplitHostPort(res.Peer)
		if err != nil {
			return err
		}
		r.Transfers = append(r.Transfers, Transfer{
			From: a.name, To: b.name, Family: family, Bytes: res.Bytes, Mbps: res.Mbps(), Peer: peer,
			Sent: fmt.Sprintf("%016x", res.Sent), Received: fmt.Sprintf("%016x", res.Received),
		})
	}
	return nil
}

// transfer moves a stream from a to b. A guest is the client where it can be: the world has no way in.
func transfer(ctx context.Context, a, b place, family int, seed uint64) (stream.Result, error) {
	switch {
	case a.vm != nil:
		return a.vm.Upload(ctx, b.addrs[family], seed, transferBytes, transferLimit)
	case b.vm != nil && a.name == worldName:
		return b.vm.Download(ctx, a.addrs[family], seed, transferBytes, transferLimit)
	}
	d := net.Dialer{Timeout: transferLimit}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(b.addrs[family].String(), strconv.Itoa(stream.Port)))
	if err != nil {
		return stream.Result{}, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(transferLimit)); err != nil {
		return stream.Result{}, err
	}
	return stream.Upload(c, seed, transferBytes)
}

// checkPeers wants the world to have seen the node's address, and everybody else the guest's own.
func checkPeers(r *Report, guests []place) error {
	own := map[string][]netip.Addr{}
	for _, g := range guests {
		own[g.name] = g.addrs
	}
	for _, t := range r.Transfers {
		client := t.From
		if t.From == worldName {
			client = t.To
		}
		want, ok := own[client]
		if !ok {
			continue // the node's address is the kernel's choice
		}
		if t.From == worldName || t.To == worldName {
			want = []netip.Addr{nodeUplink[0].Addr(), nodeUplink[1].Addr()}
		}
		i := 0
		if strings.Contains(t.Peer, ":") {
			i = 1
		}
		if t.Peer != want[i].String() {
			return fmt.Errorf("stream from %s to %s: the server saw %s, want %s", t.From, t.To, t.Peer, want[i])
		}
	}
	return nil
}
