// Package metrics serves what tapird knows of the node to Prometheus: everything that a [measure.Sample] has, the address ranges, the
// CNI calls that the plugin counted, and what the agent's other parts did. The families are one table (catalogue.go), of which
// docs/metrics.md is made; a scrape is one sample.
//
// A node may have a thousand attachments and twenty thousand series and more, so that a scrape fills messages of its own that are used again, and not a
// [prometheus.Metric] for each: the registry's way takes several times the memory and the time.
package metrics
