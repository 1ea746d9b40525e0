package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// isTerminal tells whether a file is a terminal (tcgetattr(3)).
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Sequences of ECMA-48 and xterm.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseLine   = "\x1b[K"
	eraseBelow  = "\x1b[J"
)

// runScreen shows frames on a terminal until q, an interrupt or ctx, and leaves it as it was.
func runScreen(ctx context.Context, out *os.File, m *topModel, interval time.Duration, look func() error) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	keys := make(chan string)
	if restore, rawErr := raw(os.Stdin); rawErr == nil { // without a keyboard it is to be interrupted
		defer func() { err = errors.Join(err, restore()) }()
		go readKeys(ctx, os.Stdin, keys)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	if _, err := fmt.Fprint(out, enterScreen); err != nil {
		return err
	}
	defer fmt.Fprint(out, leaveScreen)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := draw(out, m); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case key := <-keys:
			if !m.press(key, pageOf(out)) {
				return nil
			}
		case <-tick.C:
			if m.paused {
				continue
			}
			if err := look(); err != nil {
				return ended(ctx, err)
			}
		}
	}
}

// draw writes a frame over the one before, without blanking it first: nothing flickers.
func draw(out *os.File, m *topModel) error {
	width, height := size(out)
	lines := m.frame(width, height, painter(os.Getenv("NO_COLOR") == "")) // no-color.org
	_, err := fmt.Fprint(out, home+strings.Join(lines, eraseLine+"\r\n")+eraseLine+eraseBelow)
	return err
}

// size is a terminal's, in columns and lines; that of a VT100 where it does not say.
func size(f *os.File) (width, height int) {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 24
	}
	return int(w.Col), int(w.Row)
}

func pageOf(f *os.File) int {
	_, height := size(f)
	return max(1, height-4)
}

// raw has a terminal give keys one by one and unseen; signals stay. The returned function puts back what was.
func raw(f *os.File) (restore func() error, err error) {
	was, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &now); err != nil {
		return nil, err
	}
	return func() error { return unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, was) }, nil
}

// readKeys passes on what is typed, a key or an escape sequence at a time, until ctx ends. It waits by poll, so that it does not take a key
// that is the shell's.
func readKeys(ctx context.Context, f *os.File, keys chan<- string) {
	buf := make([]byte, 16)
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 100)
		if n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if n, err = unix.Read(int(f.Fd()), buf); err != nil || n == 0 {
			return
		}
		select {
		case keys <- string(buf[:n]):
		case <-ctx.Done():
		}
	}
}

// press does what a key says; false ends. page is how many rows are in sight.
func (m *topModel) press(key string, page int) bool {
	switch key {
	case "q", "Q", "\x1b":
		return false
	case "r":
		m.reverse = !m.reverse
	case "p", " ":
		m.paused = !m.paused
	case "\x1b[A", "k":
		m.first--
	case "\x1b[B", "j":
		m.first++
	case "\x1b[5~":
		m.first -= page
	case "\x1b[6~":
		m.first += page
	case "\x1b[H", "\x1b[1~", "g":
		m.first = 0
	case "\x1b[F", "\x1b[4~", "G":
		m.first = len(m.rows)
	}
	for _, k := range sortKeys {
		if key == string(k.key) {
			m.sort, m.first = k.name, 0
		}
	}
	m.first = max(0, m.first)
	m.arrange()
	return true
}
