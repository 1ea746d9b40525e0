/*
 * What the programs and their user share: the maps' values, the reasons, the limits. bpf2go turns these types into Go
 * by the object's BTF, so a change here needs `go generate ./xdp`; the sizes are asserted below and in a Go test.
 */
#ifndef TAPIR_H
#define TAPIR_H

#include <linux/types.h>

#define TAPIR_MAX_ENDPOINTS (1 << 17) /* map entries; an attachment takes up to three */
#define TAPIR_MAX_ADDRESSES 8	      /* of a guest, in each family */
#define TAPIR_MAX_GATEWAYS  4	      /* of a guest, in each family */

/* What became of a frame. Each frame of a known endpoint is counted under exactly one. */
enum reason {
	REASON_UNKNOWN = 0,

	/* Sent on. */
	REASON_TO_HOST,	     /* from the guest, legal: to the host's side */
	REASON_TO_GUEST,     /* from the host's side to the guest */
	REASON_ARP_ANSWERED, /* an ARP request, answered on the spot */
	REASON_ND_ANSWERED,  /* a Neighbour Solicitation, answered on the spot */

	/* Dropped: the guest claims to be somebody else (endpoints with ENDPOINT_SPOOF_CHECK). */
	REASON_SPOOF_MAC,  /* Ethernet source */
	REASON_SPOOF_IPV4, /* IPv4 source */
	REASON_SPOOF_IPV6, /* IPv6 source */
	REASON_SPOOF_ARP,  /* ARP sender, or not Ethernet/IPv4 ARP */
	REASON_SPOOF_ND,   /* ND link-layer address, NA target, or options that do not parse */

	/* Dropped: could hide one of the above (endpoints with ENDPOINT_SPOOF_CHECK). */
	REASON_VLAN,	      /* VLAN tag, in the frame or beside it */
	REASON_TRUNCATED,     /* ends inside a header */
	REASON_MALFORMED,     /* IP version or header length contradict the ethertype */
	REASON_FRAGMENTED_ND, /* ND in a fragmented packet (RFC 6980) */

	/* Dropped always: a guest is no router. */
	REASON_EXT_HEADERS,    /* more IPv6 extension headers than are looked behind */
	REASON_ROGUE_RA,       /* Router Advertisement */
	REASON_ROGUE_REDIRECT, /* ICMPv6 Redirect */

	/* Dropped: a fault on tapir's side. */
	REASON_ANSWER_FAILED, /* the frame could not be rewritten into the answer */
	REASON_NO_PEER,	      /* the endpoint does not say where frames go */

	/* Ends here: the host's side has no use for it (endpoints with ENDPOINT_SPOOF_CHECK, but for REDIRECT_EGRESS). */
	REASON_ND_LINK_LOCAL, /* ND from a link-local address */

	/* A question about the guest's configuration: the answerer's, see enum question. */
	REASON_DHCP_ANSWERED,	/* DHCP for IPv4 */
	REASON_RA_ANSWERED,	/* a Router Solicitation, with a Router Advertisement */
	REASON_DHCP6_ANSWERED,	/* DHCPv6 */
	REASON_CONFIG_IGNORED,	/* ends here: a question that the answerer must not answer */

	/* Dropped: a guest is no server (endpoints with ENDPOINT_SPOOF_CHECK or ENDPOINT_ANSWERS). */
	REASON_ROGUE_DHCP, /* DHCP or DHCPv6 from a server to a client */

	/* Translated endpoints. */
	REASON_INSIDE_ONLY,	 /* ends here: ARP or ND that speaks of the guest's inside addresses */
	REASON_INSIDE_ADDRESS,	 /* dropped: from outside, from or to the guest's inside address */
	REASON_UNTRANSLATABLE,	 /* dropped: no checksum could be kept right */
	REASON_TRANSLATE_FAILED, /* dropped, a fault on tapir's side: the frame could not be rewritten */

	REASON_MAX,
};

/*
 * What a frame for the answerer asks. guest_ingress and host_ingress tail-call slot ANSWERER of map answerers with what
 * they found in skb->cb: [0] the question, [1] where the UDP or ICMPv6 header is in the frame, [2] the endpoint's
 * counters. The frame has passed the spoof check and is no fragment. Where no program is there it goes on as any other.
 */
enum question {
	QUESTION_NONE = 0,
	QUESTION_DHCP,	/* UDP to port 67 */
	QUESTION_RS,	/* a Router Solicitation */
	QUESTION_DHCP6, /* UDP to port 547 */
};

#define ANSWERER     0
#define NR_ANSWERERS 1

enum role {
	ROLE_UNKNOWN = 0,
	ROLE_GUEST, /* the TAP */
	ROLE_POD,   /* the veth's end in the pod's netns, beside a TAP */
	ROLE_HOST,  /* the veth's end in the host's netns, of a pod without a TAP */
};

/* How a legal frame leaves. */
enum redirect {
	REDIRECT_NONE = 0, /* on to the stack */
	REDIRECT_EGRESS,   /* out of the peer device: bpf_redirect() */
	REDIRECT_PEER,	   /* to the gateway's MAC: into the receive path of the peer device's own peer, by bpf_redirect_peer() */
};

#define ENDPOINT_SPOOF_CHECK (1 << 0)
#define ENDPOINT_ANSWERS     (1 << 1) /* questions go to the answerer */
#define ENDPOINT_TRANSLATE4  (1 << 2) /* ipv4[0] is outside4 outside */
#define ENDPOINT_TRANSLATE6  (1 << 3) /* ipv6[0] is outside6 outside */

struct ipv4_prefix {
	__be32 addr; /* the host's address, not masked */
	__be32 mask;
};

struct ipv6_addr {
	__be32 word[4];
};

struct ipv6_prefix {
	struct ipv6_addr addr; /* the host's address, not masked */
	struct ipv6_addr mask;
};

/* The value of map endpoints, by ifindex: tapir's ifindexes are unique on the node. */
struct endpoint {
	enum role role;
	enum redirect redirect;
	__u32 flags;	/* ENDPOINT_* */
	__u32 peer;	/* ifindex that legal frames are redirected to, in the same netns */
	__u32 counters; /* key in map counters */
	__u8 guest_mac[6];
	__u8 gateway_mac[6];
	__u8 nr_ipv4;
	__u8 nr_ipv6;
	__u8 nr_ipv4_gateways;
	__u8 nr_ipv6_gateways;
	struct ipv4_prefix ipv4[TAPIR_MAX_ADDRESSES];
	__be32 ipv4_gateways[TAPIR_MAX_GATEWAYS];
	struct ipv6_prefix ipv6[TAPIR_MAX_ADDRESSES];
	struct ipv6_addr ipv6_gateways[TAPIR_MAX_GATEWAYS];
	__be32 outside4;
	struct ipv6_addr outside6;
	/* Of one's complement sums, from inside to outside, folded. */
	__u32 diff4;
	__u32 diff6;
};

struct counter {
	__u64 frames; /* as the guest or host handed them over: a GSO frame is one */
	__u64 bytes;  /* with the Ethernet header */
};

/* The value of map counters, one per CPU. */
struct counts {
	struct counter by_reason[REASON_MAX];
};

_Static_assert(sizeof(struct ipv6_prefix) == 32, "struct ipv6_prefix");
_Static_assert(sizeof(struct endpoint) == 464, "struct endpoint");
_Static_assert(sizeof(struct counter) == 16, "struct counter");
_Static_assert(sizeof(struct counts) == 16 * REASON_MAX, "struct counts");

#endif
