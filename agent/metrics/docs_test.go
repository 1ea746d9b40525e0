package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const docsPath = "../../docs/metrics.md"

const docsHead = `# Metrics

tapird serves them at ` + "`http://" + DefaultBind + "/metrics`" + ` in Prometheus' format; ` + "`--metrics-bind-address`" + ` (key ` + "`metricsBindAddress`" + `) gives another place, or none where it is empty.
The default is the node alone, since the names of pods and what they move are nobody else's business: for a Prometheus elsewhere bind to the address that it reaches, and
let only it through. Gzip is used where the scraper takes it. Beside it are ` + "`/healthz`" + ` (the process answers), ` + "`/readyz`" + ` (which parts run and are ready, and why not, as JSON; 503 while one is not or the attachments are not known
yet), and with ` + "`--pprof`" + ` /debug/pprof. [deploy/monitoring](../deploy/monitoring) has alert rules and a Grafana dashboard.

A scrape reads everything at once, no older than 250 ms. It enters no network namespace, but those of pods whose sending is limited (bandwidth), for what that limit dropped. What
could not be read is missing, and ` + "`tapir_agent_sample_problems`" + ` counts it.

**Labels.** Series of an attachment have ` + "`network`, `container_id`, `interface`" + `, and with Kubernetes ` + "`namespace` and `pod`" + ` (CNI_ARGS K8S_POD_NAMESPACE, K8S_POD_NAME); those of a queue ` + "`queue`" + ` as well; those of an
uplink ` + "`device`" + `. No label is a pid, an address or anything else of which there is no end, but for ` + "`program`" + `: a process names itself as it likes, and a queue has one holder at a time.

**How many.** An attachment without a VMM has 19 series; each open queue has 4 more. With the shortcut it has 8 more. Each reason that a frame was dropped or
passed for has one once it was met: 18 and 24 a hook are all that there are. A thousand attachments, 300 of them open, are 20,300 series (` + "`make bench-agent`" + `), and go when their attachment goes.

**Frames of each queue** are not among them: the kernel counts them for the whole TAP (` + "`qstats-get`" + ` of netdev-genl does not know tun).

**The GRO effect** is what a frame is after it: ` + "`rate(tapir_redirect_bytes_total{reason=\"to_host\"}[5m]) / rate(tapir_redirect_frames_total{reason=\"to_host\"}[5m])`" + ` bytes, and
` + "`rate(tapir_tap_from_guest_frames_total[5m]) / ignoring(reason) rate(tapir_redirect_frames_total{reason=\"to_host\"}[5m])`" + ` are the frames that were made one. A guest that sends GSO frames has large ones without GRO.

**The uplink** is looked at where ` + "`--metrics-uplink DEVICE`" + ` (key ` + "`metricsUplinks`" + `) names it, by generic netlink (Linux 6.8 and newer) and sysfs. A driver that does not tell its queues' NAPIs, or uses no page pool, has none
of these series.

Units are in the names: seconds, bytes, frames, addresses, pages. This page is made from the exporter's table (` + "`go test ./agent/metrics -run Docs -update`" + `). The process's own metrics are ` + "`go_*` and `process_*`" + `.

| metric | type | one for | labels of its own, and how many series | what |
| --- | --- | --- | --- | --- |
`

func docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	for i := range families {
		f := &families[i]
		labels := ""
		for j, l := range f.labels {
			if j > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
		}
		if f.series != "" {
			labels = strings.TrimPrefix(labels+"; "+f.series, "; ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.name, kindName(f.kind), f.scope, labels, f.help)
	}
	return b.String()
}

func kindName(k dto.MetricType) string { return strings.ToLower(k.String()) }

// docs/metrics.md is the table.
func TestDocsAreTheTable(t *testing.T) {
	if *update {
		if err := os.WriteFile(docsPath, []byte(docs()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(docs(), string(got)); diff != "" {
		t.Errorf("docs/metrics.md (-want +got); write it anew by -update:\n%s", diff)
	}
}
