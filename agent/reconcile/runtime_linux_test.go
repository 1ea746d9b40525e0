package reconcile_test

import (
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A runtime is a server of the one call that tapird makes, with the sandboxes that a test gives it. Module test/cri has the real one.
type runtime struct {
	path string

	mu    sync.Mutex
	ids   []string
	fails bool
	s     *http.Server
}

func newRuntime(t testing.TB, ids ...string) *runtime {
	t.Helper()
	r := &runtime{path: filepath.Join(t.TempDir(), "cri.sock"), ids: ids}
	r.open(t)
	t.Cleanup(func() { r.close() })
	return r
}

func (r *runtime) open(t testing.TB) {
	t.Helper()
	_ = os.Remove(r.path)
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	r.s = &http.Server{Handler: r, Protocols: &p}
	go r.s.Serve(l) //nolint:errcheck // it ends with close
}

func (r *runtime) close() { _ = r.s.Close() }

func (r *runtime) set(fails bool, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids, r.fails = ids, fails
}

func (r *runtime) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Header().Set("Content-Type", "application/grpc")
	if req.URL.Path != "/runtime.v1.RuntimeService/ListPodSandbox" || r.fails {
		w.Header().Set("Grpc-Status", "14")
		w.Header().Set("Grpc-Message", "not now")
		return
	}
	w.Header().Set("Trailer", "Grpc-Status")
	var msg []byte
	for _, id := range r.ids {
		item := append([]byte{1<<3 | 2, byte(len(id))}, id...)
		msg = append(append(msg, 1<<3|2, byte(len(item))), item...)
	}
	_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...))
	w.Header().Set("Grpc-Status", "0")
}
