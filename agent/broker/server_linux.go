package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// Defaults of a [Config].
const (
	DefaultTimeout  = 5 * time.Second
	DefaultMaxPeers = 64
)

// What is not configured.
const (
	openAtOnce = 4                // hand-overs that have queues open: at most 1024 descriptors
	sweepAgain = 10 * time.Second // after a sweep that failed
	sweepMade  = time.Second      // after a token was asked for
)

// Config is what a [Server] is made of.
type Config struct {
	StateDirs []string      // [state.DefaultDir] where empty
	Timeout   time.Duration // of one connection, from its start; [DefaultTimeout] where 0
	MaxPeers  int           // connections at once, at most a quarter of them one user's unless that is root; [DefaultMaxPeers] where 0
	// Gone tells that attachments went, whose tokens are to go too. Without it that happens at the start alone.
	Gone   <-chan struct{}
	Logger *slog.Logger
}

// Server answers peers. It keeps nothing that a restart could lose.
type Server struct {
	c     Config
	ctx   context.Context // of the transactions: not cancelled while a peer is being answered
	opens chan struct{}
	made  chan struct{} // a token may have been made
	peers sync.WaitGroup

	mu    sync.Mutex
	users map[int]int // connections by uid
	all   int
}

// New makes a Server.
func New(c Config) *Server {
	if len(c.StateDirs) == 0 {
		c.StateDirs = []string{state.DefaultDir}
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxPeers == 0 {
		c.MaxPeers = DefaultMaxPeers
	}
	return &Server{c: c, ctx: context.Background(), opens: make(chan struct{}, openAtOnce), made: make(chan struct{}, 1), users: map[int]int{}}
}

// Serve answers peers until ctx ends, then stops listening and waits for those that are being answered: no longer than
// Config.Timeout. The socket's file is removed at the end.
func (s *Server) Serve(ctx context.Context, socket *Socket) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s.peers.Go(func() { s.sweep(ctx) })
	err := s.accept(ctx, socket)
	cancel()
	// What connected and was not accepted finds its connection closed, and asks the next tapird.
	removeErr := socket.Remove()
	s.peers.Wait()
	return errors.Join(err, removeErr)
}

func (s *Server) accept(ctx context.Context, socket *Socket) error {
	for {
		conn, err := socket.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.ENOMEM):
			s.c.Logger.Warn("could not accept", "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		s.admit(conn)
	}
}

// admit answers a peer in a goroutine of its own, or refuses it where there are too many.
func (s *Server) admit(conn *net.UnixConn) {
	if err := conn.SetDeadline(time.Now().Add(s.c.Timeout)); err != nil {
		s.c.Logger.Warn("could not set a peer's deadline", "error", err)
		_ = conn.Close()
		return
	}
	p, err := peerOf(conn)
	if err != nil {
		s.c.Logger.Warn("refused a peer", "error", err)
		_ = conn.Close()
		return
	}
	if refusal := s.enter(p.uid); refusal != nil {
		s.refused(p, client.Request{}, refusal)
		s.sendRefusal(conn, refusal) // a few bytes into an empty buffer: it does not wait
		_ = conn.Close()
		return
	}
	s.peers.Go(func() {
		defer s.leave(p.uid)
		defer func() { _ = conn.Close() }()
		s.serve(conn, p)
	})
}

// enter counts a connection in. A user other than root has a share, so that silent peers of one leave room for the others.
func (s *Server) enter(uid int) *client.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.c.MaxPeers
	if uid != 0 {
		share = max(share/4, 1)
	}
	if s.all >= s.c.MaxPeers || s.users[uid] >= share {
		return refuse(client.Overload, "%d peers are connected, %d of them of uid %d; ask again", s.all, s.users[uid], uid)
	}
	s.all++
	s.users[uid]++
	return nil
}

func (s *Server) leave(uid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.users[uid]--; s.users[uid] == 0 {
		delete(s.users, uid)
	}
}

// sweep removes tokens of attachments that are gone: at the start, whenever some went, and a while after a token was made, since what lives shorter
// than that may go without anybody seeing it.
func (s *Server) sweep(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.made:
			again.Reset(sweepMade)
			continue
		case <-s.c.Gone:
		case <-again.C:
		}
		for _, dir := range s.c.StateDirs {
			if err := s.sweepTokens(dir); err != nil {
				s.c.Logger.Warn("could not remove the tokens of attachments that are gone", "stateDir", dir, "error", err)
				again.Reset(sweepAgain)
			}
		}
	}
}

func (s *Server) store(dir string) *state.Store {
	return state.New(state.Config{Dir: dir, LockWait: s.c.Timeout, Logger: s.c.Logger})
}
