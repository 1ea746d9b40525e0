// Package harness runs a real Kubernetes on one machine for tests: API server, controllers, scheduler, and nodes with containerd, kubelet and
// kube-proxy, each node in namespaces of its own, so that to kill its first process is to pull its plug. Everything is in the namespaces of
// the process that called [Up] (package testnode) and in one temporary folder; cgroups are the exception, and are removed.
//
// The programs are those of "make k8s". Authentication is by static tokens; the API server's certificate is not checked.
package harness
