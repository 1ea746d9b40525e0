// Package deploy has the tests that hold deploy/ against what it is for: kustomize builds each overlay, Kubernetes' own types take what comes out without a key
// left over, tapird and its plugin take the configuration, and what the DaemonSet may do is what a list here says, with the reason. It is a module of its own, since the
// product needs no kustomize.
package deploy
