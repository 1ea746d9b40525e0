// Package testnode gives kernel tests a node of their own: a test binary re-executed in new network and mount
// namespaces, so that links, nft tables, sysctls of the netns, BPF pins and files under /run are the test's and never
// the machine's. What a test leaves behind in it fails the run.
//
// A package whose tests touch the kernel has
//
//	func TestMain(m *testing.M) { testnode.Main(m) }
//
// and names what each test needs by [Require]. A need that is not met skips the test, unless the environment variable
// TAPIR_REQUIRE (a comma-separated list of needs, or "all") says that this machine must have it: then it fails.
package testnode
