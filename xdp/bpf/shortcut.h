/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the programs of the shortcut and their user share. Maps of one layout are shared by all versions of the programs,
 * so a change of meaning that the maps' sizes do not show needs another SHORTCUT_LAYOUT.
 */
#ifndef TAPIR_SHORTCUT_H
#define TAPIR_SHORTCUT_H

#include <linux/types.h>

#include "tapir.h"

enum shortcut_layout {
	SHORTCUT_LAYOUT = 2,
};

#define SHORTCUT_MAX_ATTACHMENTS (1 << 16) /* map entries; a participant takes two */
#define SHORTCUT_MAX_PODS	 (1 << 16) /* addresses */
#define SHORTCUT_MAX_DEVICES	 (1 << 14)
#define SHORTCUT_MAX_UPLINKS	 64
#define SHORTCUT_MAX_ROUTES	 (1 << 14)
#define SHORTCUT_MAX_FLOWS	 (1 << 16) /* in each family; each direction is one */
#define SHORTCUT_EVENTS_SIZE	 (1 << 18)
#define SHORTCUT_TUNNEL_PORTS	 16

/* Room for reasons of later versions: more of them are no other layout. */
#define PATH_SLOTS 40

/*
 * What a program of the shortcut made of a frame. PATH_CHECKSUM_COMPLETED and PATH_LOOKED_UP are counted beside another reason,
 * and each frame of an attachment under exactly one of the others.
 */
enum path_reason {
	PATH_UNKNOWN = 0,

	/* Taken. */
	PATH_TO_GUEST,	/* into the TAP, or the pod end, of a guest of this node */
	PATH_TO_UPLINK, /* out of the uplink, to the next hop */

	/* Counted beside. */
	PATH_CHECKSUM_COMPLETED, /* a partial checksum was completed */
	PATH_LOOKED_UP,		 /* conntrack was asked for the flow */

	/* Passed, since the frame is not plain. */
	PATH_PASS_GENERIC,     /* the generic run: GSO, larger than a page, or from a writer that does not get native XDP */
	PATH_PASS_NOT_IP,      /* ARP, another ethertype, or a tag */
	PATH_PASS_NOT_GATEWAY, /* not to the gateway's MAC; on the uplink, not to the uplink's */
	PATH_PASS_SOURCE,      /* from an address that is not the guest's own; on the uplink, not from behind it */
	PATH_PASS_OPTIONS,     /* IPv4 options */
	PATH_PASS_EXT_HEADERS, /* IPv6 extension headers */
	PATH_PASS_FRAGMENT,    /* of a fragmented packet */
	PATH_PASS_PROTOCOL,    /* neither TCP, UDP, ICMP echo, nor an error about the shortcut's */
	PATH_PASS_TUNNEL,      /* a tunnel's UDP port: an inner partial checksum cannot be told */
	PATH_PASS_TTL,	       /* TTL or hop limit ends here */
	PATH_PASS_LENGTH,      /* lengths contradict each other, or the frame ends inside a header */
	PATH_PASS_CHECKSUM,    /* a partial checksum that this run cannot complete */
	PATH_PASS_TRANSLATED,  /* an ICMP error of or to a guest with a fixed identity: tc translates its quote */

	/* Passed, since there is no short way. */
	PATH_PASS_NO_TARGET,	/* neither a participating guest nor a route */
	PATH_PASS_NO_DEVICE,	/* the target's device is gone */
	PATH_PASS_NO_NEXT_HOP,	/* the route's next hop is not usable now */
	PATH_PASS_MTU,		/* longer than the target takes */

	/* Passed, since it may not. */
	PATH_PASS_FLAGGED,	/* one of both ends is flagged "no shortcut" */
	PATH_PASS_CONNTRACK,	/* conntrack knows the flow */
	PATH_PASS_NO_REQUEST,	/* an echo reply whose request did not come this way */
	PATH_PASS_LOOKUP_FAILED, /* conntrack could not be asked */

	/* Dropped: the guest claims to be somebody else. */
	PATH_DROP_SPOOF_MAC,
	PATH_DROP_SPOOF_IPV4,
	PATH_DROP_SPOOF_IPV6,

	/* Dropped: a fault on tapir's side, after the frame was changed. */
	PATH_DROP_ABORTED,

	PATH_MAX,
};

/* Where a program of the shortcut ran. A hook has its own slots in the counters. */
enum path_hook {
	HOOK_UNKNOWN = 0,
	HOOK_TAP_XDP,	 /* XDP on the TAP */
	HOOK_HOST_TC,	 /* tc on the host end */
	HOOK_UPLINK_XDP, /* XDP on the uplink */
	HOOK_MAX,
};

#define ATTACHMENT_SPOOF_CHECK (1 << 0)
#define ATTACHMENT_NO_SHORTCUT (1 << 1)
#define ATTACHMENT_UPLINK      (1 << 2)
#define ATTACHMENT_TRANSLATE4  (1 << 3) /* the guest has inside4 for ipv4[0] */
#define ATTACHMENT_TRANSLATE6  (1 << 4) /* the guest has inside6 for ipv6[0] */

/*
 * The value of map attachments: by the ifindex of a participant's TAP and of its host end, twice the same; and by an
 * uplink's, with only flags, counters, mtu and gateway_mac, which is then the uplink's own.
 */
struct attachment {
	__u32 flags;	/* ATTACHMENT_* */
	__u32 counters; /* key in map paths */
	__u32 tap;
	__u32 host;
	__s32 host_nsid; /* of the host's netns, in the TAP's */
	__u32 mtu;
	__u8 guest_mac[6];
	__u8 gateway_mac[6];
	__u8 nr_ipv4;
	__u8 nr_ipv6;
	__u8 pad[2];
	__be32 ipv4[TAPIR_MAX_ADDRESSES];
	struct ipv6_addr ipv6[TAPIR_MAX_ADDRESSES];
	struct ipv6_addr inside4; /* as in the keys */
	struct ipv6_addr inside6;
	__u32 diff4; /* of one's complement sums, from inside to outside, folded */
	__u32 diff6;
};

/* The value of map pods, by address: where its guest is. An IPv4 address is ::ffff:a.b.c.d in all keys. */
struct pod {
	__u32 tap; /* key in map devices. First in all layouts: whose an entry is */
	__u32 host;
	__u32 mtu;
	__u32 flags; /* ATTACHMENT_NO_SHORTCUT, ATTACHMENT_TRANSLATE* of the key's family */
	__u8 guest_mac[6];
	__u8 gateway_mac[6];
	__u32 diff; /* of one's complement sums, from the key to inside, folded */
	struct ipv6_addr inside; /* what the guest has for the key, where it is translated */
};

/* The key of map routes. */
struct route_key {
	__u32 bits; /* of addr */
	struct ipv6_addr addr;
};

#define ROUTE_USABLE (1 << 0)

/* The value of map routes. */
struct route {
	__u32 uplink; /* key in map uplinks */
	__u32 mtu;
	__u32 flags; /* ROUTE_* */
	__u8 dst_mac[6];
	__u8 src_mac[6];
	struct ipv6_addr next_hop; /* not read by the programs */
};

/* The key of map flows6, a direction. Of ICMP echo, source_port is the identifier and dest_port 0. */
struct flow_key {
	struct ipv6_addr source, dest;
	__be16 source_port, dest_port;
	__u32 proto;
};

/* The key of map flows4: a third of the time to look up, and most flows. */
struct flow4_key {
	__be32 source, dest;
	__be16 source_port, dest_port;
	__u32 proto;
};

enum verdict {
	VERDICT_UNKNOWN = 0,
	VERDICT_SHORTCUT,
	VERDICT_DEFAULT,
};

/* The value of both. */
struct flow {
	__u64 asked; /* CLOCK_MONOTONIC_COARSE, ns */
	__u64 tick;  /* the same in jiffies, which cost nothing to read */
	__u32 epoch; /* settings.epoch when it was asked */
	enum verdict verdict;
};

#define TRACE_SOURCE (1 << 0)
#define TRACE_DEST   (1 << 1)

/* Which frames are traced, in either direction. A zero port or proto is any. */
struct trace_filter {
	__u32 flags; /* TRACE_*: which addresses are compared */
	__u32 proto;
	__be16 source_port, dest_port;
	struct ipv6_addr source, dest;
};

/* The only value of map settings. */
struct shortcut_settings {
	__u64 trace_until;  /* CLOCK_MONOTONIC, ns; 0: no trace */
	__u64 trace_lost;   /* events that the ring had no room for */
	__u64 udp_lifetime; /* of a verdict on UDP, jiffies */
	__u32 epoch;	    /* verdicts of another are asked anew */
	__u32 nr_routes;    /* 0: map routes is not looked at */
	__be16 tunnel_ports[SHORTCUT_TUNNEL_PORTS]; /* unused ones are 0 */
	struct trace_filter filter;
	enum shortcut_layout layout; /* not read; it tells the loader */
};

/* What is in map events. */
struct path_event {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 ifindex;
	enum path_hook hook;
	enum path_reason reason;
	enum verdict verdict; /* of the flow; unknown where it was not asked for */
	__u32 len;
	__u32 gso_size; /* tc alone */
	__u32 target;	/* ifindex of the TAP or uplink */
	__u32 proto;
	struct ipv6_addr source, dest;
	__be16 source_port, dest_port;
	__u32 pad;
};

/* The value of map paths, one per CPU: by_hook[0] is XDP on the TAP or uplink, [1] tc on the host end. */
struct path_counts {
	struct counter by_hook[2][PATH_SLOTS];
};

_Static_assert(PATH_MAX <= PATH_SLOTS, "enum path_reason");
_Static_assert(sizeof(struct attachment) == 240, "struct attachment");
_Static_assert(sizeof(struct pod) == 48, "struct pod");
_Static_assert(sizeof(struct route) == 40, "struct route");
_Static_assert(sizeof(struct flow_key) == 40, "struct flow_key");
_Static_assert(sizeof(struct flow4_key) == 16, "struct flow4_key");
_Static_assert(sizeof(struct flow) == 24, "struct flow");
_Static_assert(sizeof(struct shortcut_settings) == 112, "struct shortcut_settings");
_Static_assert(sizeof(struct path_event) == 80, "struct path_event");

#endif
