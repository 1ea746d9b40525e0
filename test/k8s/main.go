// Command k8s is Kubernetes for the cluster tests: the programs of its control plane, of its nodes and kubectl in one binary, which does what
// its name says. One binary links in a third of the time and takes a third of the space. Its version is go.mod's.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

// etcd is the store of the API server. It is no cobra command of its own.
const etcd = "etcd"

func main() {
	name := filepath.Base(os.Args[0])
	if name == etcd {
		etcdmain.Main(os.Args) // does not return
	}
	program, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "k8s: call it by one of the names %s or %s\n", strings.Join(slices.Sorted(maps.Keys(programs)), ", "), etcd)
		os.Exit(2)
	}
	os.Exit(cli.Run(program()))
}
