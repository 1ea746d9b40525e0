// Package uplink keeps the shortcut's routes to other nodes as this node's kernel has them: a route names a prefix and a next hop, and
// what frames need beside, the device, the MACs and the MTU, is taken from the routing and the neighbour table, again whenever
// they change. A next hop without a MAC that the kernel itself would send to is unusable, and frames take the default path.
//
// Nothing polls: rtnetlink's events say what changed in the kernel, inotify that somebody changed the map's routes.
package uplink
