package ping

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const out = `PING 10.9.0.1 (10.9.0.1): 56 data bytes
64 bytes from 10.9.0.1: seq=0 ttl=64 time=5.014 ms

--- 10.9.0.1 ping statistics ---
3 packets transmitted, 2 packets received, 33% packet loss
round-trip min/avg/max = 0.500/2.757/5.014 ms
`
	r, err := parse(out)
	if err != nil || r.Sent != 3 || r.Received != 2 || r.Min != 500*time.Microsecond || r.Avg != 2757*time.Microsecond || r.Max != 5014*time.Microsecond {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := parse("ping: sendto: Network is unreachable\n"); err == nil {
		t.Error("no count: want an error")
	}
	r, err = parse("1 packets transmitted, 0 packets received, 100% packet loss\n")
	if err != nil || r.Sent != 1 || r.Received != 0 || r.Avg != 0 {
		t.Errorf("nothing received: got %+v, %v", r, err)
	}
}
