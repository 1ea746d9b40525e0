package vhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	types "github.com/containernetworking/cni/pkg/types/100"
)

func TestFiguresOfARound(t *testing.T) {
	r := Round{Bytes: 2e9, Seconds: 4, Packets: 1000, Receiver: 1, Vhost: 2, Softirq: 0.5}
	for what, v := range map[string][2]float64{
		"CPU seconds per GB": {r.CPUPerGB(), 1.75}, "bytes per packet": {r.BytesPerPacket(), 2e6}, "Mbit/s": {r.Mbps(), 4000},
	} {
		if math.Abs(v[0]-v[1]) > 1e-9 {
			t.Errorf("%s: want %g, got %g", what, v[1], v[0])
		}
	}
}

func TestGoalComparesMedians(t *testing.T) {
	result := func(with, without []float64) *Result {
		r := &Result{}
		for napi, all := range map[bool][]float64{true: with, false: without} {
			for _, v := range all {
				r.Rounds = append(r.Rounds, Round{NAPI: napi, Bytes: 1e9, Seconds: 1, Vhost: v})
			}
		}
		return r
	}
	for _, tt := range []struct {
		with, without []float64
		want          string
	}{
		{[]float64{8, 7, 90}, []float64{10, 10, 10}, "goal vhost_cpu_per_gb 0.800 <= 0.8 met"},
		{[]float64{8.1, 8.1, 1}, []float64{10, 11, 1}, "goal vhost_cpu_per_gb 0.810 <= 0.8 short"},
	} {
		goals := result(tt.with, tt.without).Goals()
		if len(goals) != 1 || goals[0].String() != tt.want {
			t.Errorf("want %q, got %v", tt.want, goals)
		}
	}
}

func TestRoundsComeInAnyPieces(t *testing.T) {
	var sent bytes.Buffer
	out := json.NewEncoder(&sent)
	for i := range 3 {
		if err := out.Encode(Round{NAPI: i == 1, Bytes: int64(i + 1), Seconds: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var said []string
	d := &decoder{result: &Result{}, progress: func(s string) { said = append(said, s) }}
	for _, b := range sent.Bytes() {
		if n, err := d.Write([]byte{b}); n != 1 || err != nil {
			t.Fatalf("write a byte: %d, %v", n, err)
		}
	}
	got := d.result
	if len(got.Rounds) != 3 || len(got.of(true)) != 1 || got.of(true)[0].Bytes != 2 || len(said) != 3 {
		t.Errorf("want 3 rounds, the second with NAPI, each reported, got %+v, %q", got.Rounds, said)
	}
	for _, bad := range []string{"oops\n", "{}\n"} {
		if _, err := d.Write([]byte(bad)); err == nil {
			t.Errorf("%q: want it refused", bad)
		}
	}
}

func TestReportSaysWhereAndBoth(t *testing.T) {
	r := &Result{Where: "somewhere", Clock: "instructions", Rounds: []Round{
		{Bytes: 1e9, Seconds: 8, Packets: 1e6, Receiver: 3, Vhost: 4},
		{NAPI: true, Bytes: 1e9, Seconds: 4, Packets: 1e5, Receiver: 1, Vhost: 2.5},
	}}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "somewhere") || !strings.Contains(lines[0], "instructions") {
		t.Fatalf("want where and the unit, names and two rows, got\n%s", b.String())
	}
	for i, want := range []string{"off 7.00 7.00-7.00 3.00 4.00 0.00 1000 0 1000", "on 3.50 3.50-3.50 1.00 2.50 0.00 10000 0 2000"} {
		if got := strings.Join(strings.Fields(lines[2+i]), " "); got != want {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}

func TestSnmpFindsTheValueUnderItsName(t *testing.T) {
	const text = `Ip: Forwarding DefaultTTL InReceives InHdrErrors
Ip: 1 64 4711 0
Icmp: InMsgs InReceives
Icmp: 8 9
`
	if got, err := snmp(text, "Ip", "InReceives"); err != nil || got != 4711 {
		t.Errorf("want 4711, got %d, %v", got, err)
	}
	if _, err := snmp(text, "Ip", "OutRequests"); err == nil {
		t.Error("a name that is not there: want an error")
	}
	own, err := packetsIn()
	if err != nil || own < 0 {
		t.Errorf("this machine's own: %d, %v", own, err)
	}
}

// With enough CPUs nothing shares one; with two, what is measured shares none with what is not.
func TestSpreadKeepsWhatIsMeasuredApart(t *testing.T) {
	for count := 1; count <= 9; count++ {
		c := spread(count)
		for _, at := range []int{c.sender, c.testpmd, c.vhost, c.receiver} {
			if at < 0 || at >= count {
				t.Errorf("%d CPUs: there is no CPU %d in %+v", count, at, c)
			}
		}
		if count >= 2 && (c.sender == c.vhost || c.sender == c.receiver || c.testpmd == c.vhost || c.testpmd == c.receiver) {
			t.Errorf("%d CPUs: %+v", count, c)
		}
	}
}

func TestEachSettingGoesFirstInTurn(t *testing.T) {
	for i := range 4 {
		o := order(i)
		if len(o) != 2 || o[0] == o[1] || o[0] != (i%2 == 1) {
			t.Errorf("round %d: %v", i, o)
		}
	}
}

func TestThreadsOfNoVhostAreNone(t *testing.T) {
	if got, err := vhostThreads(os.Getpid()); err != nil || len(got) != 0 {
		t.Errorf("this process has no vhost, got %v, %v", got, err)
	}
	id, err := softirqThread(0)
	if err != nil {
		t.Skip("the kernel's threads are not to be seen here")
	}
	if spent, err := runtimeOf(id); err != nil || spent < 0 {
		t.Errorf("ksoftirqd/0: %s, %v", spent, err)
	}
}

func TestResultOfADDTellsTheGuest(t *testing.T) {
	const text = `{"cniVersion":"1.0.0","interfaces":[
		{"name":"tpr1","mac":"02:74:61:70:69:72"},
		{"name":"eth0","mac":"0a:58:0a:cb:00:02","sandbox":"/run/netns/s2"},
		{"name":"tap-eth0","mac":"0a:58:0a:cb:00:02","sandbox":"/run/netns/s2"}],
		"ips":[{"interface":1,"address":"10.203.0.2/24","gateway":"10.203.0.1"}]}`
	r := &types.Result{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		t.Fatal(err)
	}
	s := &setup{}
	g, err := s.read(r)
	got := fmt.Sprintf("%s %s %s %s", s.tap, s.gateway, g.mac, g.address)
	if want := "tap-eth0 10.203.0.1 0a:58:0a:cb:00:02 10.203.0.2/24"; err != nil || got != want {
		t.Errorf("want %q, got %q, %v", want, got, err)
	}
	r.Interfaces = r.Interfaces[:2]
	if _, err := (&setup{}).read(r); err == nil {
		t.Error("a result without TAP: want an error")
	}
}
