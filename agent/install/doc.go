// Package install puts tapir on a node: the plugins into the folder of the CNI plugins, and, last, the network configuration that makes the
// runtime call them. Both are kept: what is removed or edited comes back. It knows nothing of Kubernetes; the ranges of a node it is told
// (design 0009).
package install
