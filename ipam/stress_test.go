package ipam

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/state"
)

// workerEnv makes the test binary a worker below the directory that it names.
const workerEnv = "TAPIR_IPAM_WORKER"

const workers = 20

// worker takes and releases leases as fast as it can, as many CNI calls at once would, and prints a line for each when
// it is done: the test knows what a killed worker was told. Its arguments are its number and how much to do.
func worker(dir string) {
	id, _ := strconv.Atoi(os.Args[1])
	calls, _ := strconv.Atoi(os.Args[2])
	s, faults := ranges("10.9.0.0/26", "fd00::/64").Validate()
	if len(faults) > 0 {
		panic(faults)
	}
	store := storeIn(filepath.Join(dir, "state"))
	r := rand.New(rand.NewPCG(uint64(id), 1))
	held := map[int][]Lease{}
	for n := 0; n < calls || len(held) > 0; n++ {
		for number, leases := range held {
			if n < calls && (len(held) < 2 || r.IntN(2) == 0) {
				break // two of 61 addresses each at most: 20 workers never exhaust them
			}
			claim(dir, leases, false)
			must(store.Update(context.Background(), func(tx *state.Tx) error { return Release(tx, key(number)) }))
			fmt.Printf("released %d\n", number)
			delete(held, number)
		}
		if n >= calls || len(held) == 2 {
			continue
		}
		number := id*1_000_000 + n
		var got []Lease
		must(store.Update(context.Background(), func(tx *state.Tx) (err error) {
			got, err = Acquire(tx, Request{Key: key(number), Sets: s.Sets, ReuseDelay: time.Millisecond})
			return err
		}))
		fmt.Printf("acquired %d\n", number)
		claim(dir, got, true)
		held[number] = got
	}
	fmt.Println("done")
}

// claim makes a file for each address after it was leased, and removes it before the release: a file that is there
// already is an address with two holders.
func claim(dir string, leases []Lease, take bool) {
	for _, l := range leases {
		name := filepath.Join(dir, l.Prefix.Addr().String())
		if !take {
			must(os.Remove(name))
			continue
		}
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600)
		must(err)
		must(f.Close())
	}
}

func must(err error) {
	if err != nil {
		fmt.Printf("failed: %v\n", err)
		os.Exit(1)
	}
}

// startWorkers starts all workers; their output is complete once they were waited for.
func startWorkers(t *testing.T, dir string, calls int) (cmds []*exec.Cmd, out []*bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for id := range workers {
		cmd := exec.Command(exe, strconv.Itoa(id), strconv.Itoa(calls))
		cmd.Env = append(os.Environ(), workerEnv+"="+dir)
		b := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = b, b
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
		cmds, out = append(cmds, cmd), append(out, b)
	}
	return cmds, out
}

func TestNoAddressHasTwoHoldersAmongProcesses(t *testing.T) {
	dir := t.TempDir()
	cmds, out := startWorkers(t, dir, 60)
	for id, cmd := range cmds {
		if err := cmd.Wait(); err != nil || !strings.HasSuffix(out[id].String(), "done\n") {
			t.Errorf("worker %d: %v\n%s", id, err, lastLines(out[id].String()))
		}
	}
	wantNothingHeld(t, storeIn(filepath.Join(dir, "state")), settings(t, ranges("10.9.0.0/26")))
}

func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// wantNothingHeld checks that no lease is left, and that the whole IPv4 range can be given out again.
func wantNothingHeld(t *testing.T, store *state.Store, s Settings) {
	t.Helper()
	time.Sleep(2 * time.Millisecond) // what was released rests for 1 ms
	update(t, store, func(tx *state.Tx) error {
		if empty, err := tx.Empty(); !empty || err != nil {
			t.Errorf("the state is not empty: %v", err)
		}
		for i := range 61 {
			acquire(t, tx, Request{Key: key(1000 + i), Sets: s.Sets})
		}
		return nil
	})
}

// A worker that is killed at any instant leaves at most one call that it was not told the outcome of; what it had
// stays leased until its release by key, and then nothing is left.
func TestKilledProcessesLoseAndLeakNothing(t *testing.T) {
	dir := t.TempDir()
	store := storeIn(filepath.Join(dir, "state"))
	r := rand.New(rand.NewPCG(7, 7))
	for round := range 3 {
		cmds, out := startWorkers(t, dir, 1_000_000)
		for _, cmd := range cmds {
			time.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		want := map[state.Key]bool{}
		for id, cmd := range cmds {
			_ = cmd.Wait() // killed
			if strings.Contains(out[id].String(), "failed") {
				t.Errorf("worker %d: %s", id, lastLines(out[id].String()))
			}
			for _, line := range strings.Split(out[id].String(), "\n") {
				var number int
				if _, err := fmt.Sscanf(line, "acquired %d", &number); err == nil {
					want[key(number)] = true
				} else if _, err := fmt.Sscanf(line, "released %d", &number); err == nil {
					delete(want, key(number))
				}
			}
		}
		compareHeld(t, store, want, round)
		for _, name := range addressFiles(t, dir) {
			must(os.Remove(name))
		}
	}
	wantNothingHeld(t, store, settings(t, ranges("10.9.0.0/26")))
	if damaged, _ := filepath.Glob(filepath.Join(store.Dir(), "state.db?*")); len(damaged) != 0 {
		t.Errorf("killed workers damaged the state: %v", damaged)
	}
}

// compareHeld compares the leases with what the workers were told, and releases them.
func compareHeld(t *testing.T, store *state.Store, want map[state.Key]bool, round int) {
	t.Helper()
	differ := map[int]int{} // by worker
	update(t, store, func(tx *state.Tx) error {
		seen := map[netip.Addr]state.Key{}
		err := tx.ForEachLease("", func(l state.Lease) error {
			for _, a := range addrs(l.Addresses) {
				if other, twice := seen[a]; twice {
					t.Errorf("round %d: %s is leased to %q and %q", round, a, other, l.Key)
				}
				seen[a] = l.Key
			}
			if !want[l.Key] {
				differ[workerOf(t, l.Key)]++
			}
			delete(want, l.Key)
			return Release(tx, l.Key)
		})
		for k := range want {
			differ[workerOf(t, k)]++
		}
		if len(seen) == 0 {
			t.Errorf("round %d: nothing was held when the workers were killed: the test shows nothing", round)
		}
		return err
	})
	for id, n := range differ {
		if n > 1 {
			t.Errorf("round %d: worker %d: %d leases differ from what it was told, want at most the one it was killed at", round, id, n)
		}
	}
}

func workerOf(t *testing.T, k state.Key) int {
	t.Helper()
	number, err := strconv.Atoi(strings.TrimPrefix(k.ContainerID, "c"))
	if err != nil {
		t.Fatal(err)
	}
	return number / 1_000_000
}

func addressFiles(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "[0-9f]*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}
