// Package xdp is tapir's datapath: BPF programs that move a guest's frames between its TAP and the pod's veth, refuse
// what the guest sends in somebody else's name, and answer its ARP and Neighbour Discovery with the gateway's MAC.
//
// The programs and their two maps exist once on a node, pinned in a bpffs directory named by [Digest]. [Ensure] puts
// them there, or finds them there. An attachment is a few entries in map endpoints ([Programs.Reserve]), keyed by
// ifindexes that are unique on the node, and a program on each of its devices ([Programs.Attach]). Attachments outlive
// the process and the pins.
//
// The decision about a frame is bpf/decide.h; the layout of the maps is bpf/tapir.h.
//
// The shortcut is beside that, and optional: XDP on the TAP, tc on the host end and XDP on the uplink take frames that need
// nothing of the host straight to another guest or node. [EnsureShortcut] pins its programs, and its maps once for all versions of
// one layout. An attachment takes part by [Shortcut.Join], AddDevice, AttachTAP, AttachHost and, last, Publish, and ends it the
// other way round. The decision is bpf/shortcut_decide.h; why it is so, docs/design/0007-the-shortcut.md.
package xdp
