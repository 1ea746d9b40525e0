// Package netdevgenl asks the kernel's generic netlink family "netdev" (Documentation/netlink/specs/netdev.yaml) who polls a device's
// queues and what its page pools do. It speaks of the calling thread's network namespace.
package netdevgenl

import (
	"errors"
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Commands of include/uapi/linux/netdev.h.
const (
	cmdPagePoolGet      = 5
	cmdPagePoolStatsGet = 9
	cmdQueueGet         = 10
	cmdNAPIGet          = 11
)

// Conn is a socket. It is for one goroutine at a time.
type Conn struct {
	c      *genetlink.Conn
	family genetlink.Family
}

// Open opens the socket. The error is [fs.ErrNotExist] where the kernel has no such family (before Linux 6.3).
func Open() (*Conn, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	family, err := c.GetFamily("netdev")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look up the family netdev: %w", err), c.Close())
	}
	return &Conn{c, family}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.c.Close() }

// dump asks for all of something, and calls parse with the attributes of each. A kernel that has no such command gives nothing.
func (c *Conn) dump(command uint8, what string, attributes []netlink.Attribute, parse func(*netlink.AttributeDecoder) error) error {
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", what, err)
	}
	request := genetlink.Message{Header: genetlink.Header{Command: command, Version: c.family.Version}, Data: data}
	answers, err := c.c.Execute(request, c.family.ID, netlink.Request|netlink.Dump)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	for _, a := range answers {
		if err := decode(a.Data, parse); err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
	}
	return nil
}

func decode(data []byte, parse func(*netlink.AttributeDecoder) error) error {
	d, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	if err := parse(d); err != nil {
		return err
	}
	return d.Err()
}

// PagePools are those of all devices.
func (c *Conn) PagePools() (list []PagePool, err error) {
	err = c.dump(cmdPagePoolGet, "page pools", nil, collect(&list, parsePagePool))
	return list, err
}

// PagePoolStats are those of all devices; none where the kernel was built without CONFIG_PAGE_POOL_STATS.
func (c *Conn) PagePoolStats() (list []PagePoolStats, err error) {
	err = c.dump(cmdPagePoolStatsGet, "statistics of page pools", nil, collect(&list, parsePagePoolStats))
	return list, err
}

// Queues are those of one device.
func (c *Conn) Queues(index int) (list []Queue, err error) {
	err = c.dump(cmdQueueGet, "queues", ofDevice(queueIfIndex, index), collect(&list, parseQueue))
	return list, err
}

// NAPIs are those of one device that have an id: TX-only ones have none.
func (c *Conn) NAPIs(index int) (list []NAPI, err error) {
	err = c.dump(cmdNAPIGet, "NAPIs", ofDevice(napiIfIndex, index), collect(&list, parseNAPI))
	return list, err
}

func ofDevice(attribute uint16, index int) []netlink.Attribute {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attribute, uint32(index))
	data, err := e.Encode()
	if err != nil {
		panic(err) // it is four bytes
	}
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		panic(err)
	}
	return list
}

func collect[T any](list *[]T, parse func(*netlink.AttributeDecoder) (T, error)) func(*netlink.AttributeDecoder) error {
	return func(d *netlink.AttributeDecoder) error {
		one, err := parse(d)
		if err == nil {
			*list = append(*list, one)
		}
		return err
	}
}
