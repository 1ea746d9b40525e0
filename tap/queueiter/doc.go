// Package queueiter asks the kernel which queue of which TAP runs NAPI and who holds it: one record for each open file of
// /dev/net/tun on the node, whatever its netns, read from the driver's own struct tun_file by a BPF iterator
// (drivers/net/tun.c; docs/design/0004-which-queue-runs-napi.md). Nothing else tells: TUNGETIFF and sysfs give flags of the
// device, and IFF_NAPI belongs to each open file.
//
// Loading takes tens of milliseconds, because the programs are fitted to the running kernel by its BTF, and needs
// CAP_BPF and CAP_PERFMON. It is for people's questions and for the agent, never for an ADD.
package queueiter
