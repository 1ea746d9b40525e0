package queueiter_test

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// BenchmarkOpen is what a question costs that is asked once.
func BenchmarkOpen(b *testing.B) {
	testnode.Require(b, "root", "bpf", "btf")
	for b.Loop() {
		it, err := queueiter.Open()
		if err != nil {
			b.Fatal(err)
		}
		if err := it.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead is what each further look costs: it visits every open file of the node.
func BenchmarkRead(b *testing.B) {
	testnode.Require(b, "root", "bpf", "btf")
	it, err := queueiter.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer it.Close() //nolint:errcheck // the benchmark is over
	for b.Loop() {
		if _, err := it.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
