package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReportComparesClonesWithTheirPath(t *testing.T) {
	r := &Report{}
	for _, row := range []struct {
		test, variant, unit string
		value               float64
	}{
		{"tcp", "xdp-clones", "bit/s", 3.8e9}, {"tcp", "xdp", "bit/s", 4e9},
		{"tcp", "default-clones", "bit/s", 1.8e9}, {"tcp", "default", "bit/s", 2e9},
		{"frames-64", "xdp", "frames/s", 1e6}, // nothing to compare it with
		{"add", byTapir, "ms", 9}, {"add", byGuide, "ms", 60},
	} {
		r.add(row.test, row.variant, row.unit, row.value)
	}
	r.judge()
	var out strings.Builder
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	want := `TEST       VARIANT         MEDIAN  QUARTILES         UNIT
add        iptables        60.000  60.000 to 60.000  ms
add        tapir           9.000   9.000 to 9.000    ms
frames-64  xdp             1.000   1.000 to 1.000    Mpps
tcp        default         2.000   2.000 to 2.000    Gbit/s
tcp        default-clones  1.800   1.800 to 1.800    Gbit/s
tcp        xdp             4.000   4.000 to 4.000    Gbit/s
tcp        xdp-clones      3.800   3.800 to 3.800    Gbit/s
goal clones_tcp_default 0.900 >= 0.95 short
goal clones_tcp_xdp 0.950 >= 0.95 met
goal clone_add_vs_iptables 0.150 <= 0.2 met
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}
