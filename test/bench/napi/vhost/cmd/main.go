// Command bench-napi-vhost is what [vhost.Run] runs where vhost-net is: on this machine, or in the guest that it boots.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/tapir-cni/tapir/test/bench/napi/vhost"
	"github.com/tapir-cni/tapir/test/bench/node"
)

func main() {
	vhost.Command()
	var c vhost.RoundsConfig
	flag.StringVar(&c.Bin, "bin", ".", "`folder` of tapir, tapir-ipam and tapirctl")
	flag.IntVar(&c.Rounds, "rounds", 3, "rounds of each setting")
	flag.Int64Var(&c.Bytes, "bytes", 100e6, "payload `bytes` measured in each round")
	flag.Int64Var(&c.Warm, "warm", 10e6, "payload `bytes` before them")
	flag.Int64Var(&c.Rate, "rate", 0, "payload `bytes` a second; 0: as many as go")
	flag.IntVar(&c.Window, "window", 256<<10, "receive buffer in `bytes`")
	flag.IntVar(&c.Queue, "queue", 1024, "descriptors of a ring")
	flag.Parse()
	var err error
	if node.Inside() {
		err = vhost.Rounds(context.Background(), c, os.Stdout)
	} else {
		err = node.Reexec()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-napi-vhost:", err)
		os.Exit(1)
	}
}
