// Package cri holds package agent/cri against gRPC's own server and the generated code of the Container Runtime Interface. It is a module of
// its own: nothing that is shipped needs either.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/agent/cri"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type server struct {
	runtime.UnimplementedRuntimeServiceServer
	items []*runtime.PodSandbox
	err   error
}

func (s *server) ListPodSandbox(_ context.Context, r *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	if r.Filter != nil {
		return nil, errors.New("want no filter")
	}
	return &runtime.ListPodSandboxResponse{Items: s.items}, s.err
}

func serve(t *testing.T, s *server) *cri.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cri.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.MaxSendMsgSize(64 << 20))
	runtime.RegisterRuntimeServiceServer(g, s)
	go g.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(g.Stop)
	c, err := cri.New("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSandboxesAreThoseOfTheRuntime(t *testing.T) {
	var s server
	var want []cri.Sandbox
	for i := range 3000 {
		id, state := fmt.Sprintf("%064x", i), runtime.PodSandboxState_SANDBOX_READY
		if i%3 == 0 {
			state = runtime.PodSandboxState_SANDBOX_NOTREADY
		}
		s.items = append(s.items, &runtime.PodSandbox{
			Id: id, State: state, CreatedAt: 1 << 60, RuntimeHandler: "kata",
			Metadata:    &runtime.PodSandboxMetadata{Name: "pod", Uid: "u", Namespace: "default", Attempt: 3},
			Labels:      map[string]string{"a": strings.Repeat("b", 200)},
			Annotations: map[string]string{"ä": strings.Repeat("ü", 1000)},
		})
		want = append(want, cri.Sandbox{ID: id, Ready: i%3 != 0})
	}
	got, err := serve(t, &s).Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b cri.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoSandboxesAreNoError(t *testing.T) {
	got, err := serve(t, &server{}).Sandboxes(t.Context())
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestTheRuntimesErrorIsShown(t *testing.T) {
	_, err := serve(t, &server{err: status.Error(codes.Unavailable, "containerd is not ready: 100 % ä")}).Sandboxes(t.Context())
	var got *cri.StatusError
	if !errors.As(err, &got) || got.Code != int(codes.Unavailable) || got.Message != "containerd is not ready: 100 % ä" {
		t.Errorf("got %v", err)
	}
}
