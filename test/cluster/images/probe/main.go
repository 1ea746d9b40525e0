// Command probe is the pods of the cluster tests: it serves HTTP and says who asked, asks others, and becomes a program of the node's.
//
//	probe serve [NAME]       on port 8080 of every address: the pod's name or NAME, the peer's address, the answering address;
//	                         /get?url=URL: what URL answers this pod; /bytes?n=N: N bytes, the same each time
//	                         /up: the seconds that the kernel had been up when the machine got its address
//	probe get URL            print what it answers
//	probe sum URL            read it all and print length and SHA-256
//	probe chroot DIR PROGRAM [ARG…]
//
// As the first process of a microVM it serves, and becomes /agent (internal/microvm/guest), which sets the guest up.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if os.Getpid() == 1 && len(os.Args) > 0 && os.Args[0] == "/init" {
		return becomeGuest()
	}
	if len(args) == 0 {
		return errors.New("want serve, get, sum or chroot")
	}
	switch {
	case args[0] == "serve" && len(args) <= 2:
		name, err := os.Hostname()
		if len(args) == 2 {
			name, err = args[1], nil
		}
		if err != nil {
			return err
		}
		return serve(name)
	case args[0] == "get" && len(args) == 2:
		return get(args[1], os.Stdout)
	case args[0] == "sum" && len(args) == 2:
		h := sha256.New()
		n := new(counter)
		if err := get(args[1], io.MultiWriter(h, n)); err != nil {
			return err
		}
		fmt.Printf("%d %x\n", *n, h.Sum(nil))
		return nil
	case args[0] == "chroot" && len(args) > 2:
		if err := errors.Join(unix.Chroot(args[1]), unix.Chdir("/")); err != nil {
			return err
		}
		return unix.Exec(args[2], args[2:], os.Environ())
	}
	return fmt.Errorf("want serve, get URL, sum URL or chroot DIR PROGRAM, got %q", args)
}

// becomeGuest leaves a server behind. The microVM's console is the kernel's, so that both have it.
func becomeGuest() error {
	console := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if _, err := os.StartProcess("/init", []string{"probe", "serve", "guest"}, &os.ProcAttr{Files: console}); err != nil {
		return err
	}
	return unix.Exec("/agent", []string{"/init"}, os.Environ())
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func get(url string, w io.Writer) error {
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}}
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	_, err = io.Copy(w, r.Body)
	return err
}

// awaitAddress gives how long the kernel had been up, in seconds, when the machine got its address: what a guest's boot took by its own clock.
func awaitAddress(up chan<- string) {
	for ; ; time.Sleep(2 * time.Millisecond) {
		all, err := net.InterfaceAddrs()
		if err != nil {
			continue
		}
		for _, a := range all {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				data, _ := os.ReadFile("/proc/uptime") // a guest has it
				seconds, _, _ := strings.Cut(string(data), " ")
				up <- seconds
				return
			}
		}
	}
}

// serve answers until SIGTERM.
func serve(name string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		fmt.Fprintf(w, "host=%s from=%s at=%s\n", name, r.RemoteAddr, local)
	})
	mux.HandleFunc("/get", func(w http.ResponseWriter, r *http.Request) {
		var answer bytes.Buffer
		if err := get(r.URL.Query().Get("url"), &answer); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_, _ = w.Write(answer.Bytes()) // the client sees what is missing
	})
	addressed := make(chan string, 1)
	go awaitAddress(addressed)
	mux.HandleFunc("/up", func(w http.ResponseWriter, _ *http.Request) {
		up := <-addressed // it answers, so it has one
		addressed <- up
		fmt.Fprintln(w, up)
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = io.CopyN(w, rand.NewChaCha8([32]byte{1}), n) // the client sees what is missing
	})
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	s := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
