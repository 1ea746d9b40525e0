/*
 * A frame under inspection. This is the one header that knows the hook: reading is by offset and copy, because a guest
 * chooses by its vnet header how much of a frame is linear, and a check that saw only the linear part could be evaded.
 * Everything that is read is the guest's word until it was compared with the endpoint.
 */
#ifndef TAPIR_PACKET_H
#define TAPIR_PACKET_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "tapir.h"

#define ETH_P_8021Q_OLD 0x9100 /* QinQ before 802.1ad */

/* ARP for IPv4 on Ethernet, RFC 826. */
struct arp_ipv4 {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender_ip;
	__u8 target_mac[ETH_ALEN];
	__be32 target_ip;
} __attribute__((packed, aligned(2)));

_Static_assert(sizeof(struct arp_ipv4) == 28, "struct arp_ipv4");

/* What answering a Neighbour Solicitation needs of it. */
struct solicitation {
	struct ipv6_addr source;
	struct ipv6_addr target;
	bool partial_checksum; /* the stack, or the reader of the TAP, will complete the ICMPv6 checksum */
};

/* Read as one: a second read would cost each frame a tenth of the program's time. */
struct ipv4_start {
	struct iphdr ip;
	__be16 ports[2]; /* where the header has no options */
};

struct packet {
	struct __sk_buff *skb;
	enum question question; /* and where its UDP or ICMPv6 header is */
	__u32 question_off;
	struct ethhdr eth;
	union { /* filled where decide() looked at it */
		struct ipv4_start ip4;
		struct ipv6hdr ip6 __attribute__((aligned(8)));
	};
	union { /* filled where decide() asks for an answer */
		struct arp_ipv4 arp;
		struct solicitation nd;
	};
};

static __always_inline __u32 packet_len(const struct packet *p)
{
	return p->skb->len;
}

/* Copies frame bytes [off, off+len) and returns 0, or not 0 where the frame ends before that. */
static __always_inline long packet_load(const struct packet *p, __u32 off, void *to, __u32 len)
{
	return bpf_skb_load_bytes(p->skb, off, to, len);
}

/* The stack moves the outer tag out of the frame before this hook; a second one is still in it. */
static __always_inline bool packet_tagged(const struct packet *p)
{
	__be16 proto = p->eth.h_proto;

	return p->skb->vlan_present || proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD) ||
	       proto == bpf_htons(ETH_P_8021Q_OLD);
}

/* Only a plain frame is rewritten into an answer: no tag to carry over, no GSO state to undo. */
static __always_inline bool packet_answerable(const struct packet *p)
{
	return !packet_tagged(p) && p->skb->gso_size == 0;
}

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b; /* all MACs here are 2-aligned */

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* Is the frame for everybody, or for the gateway? */
static __always_inline bool packet_for_gateway(const struct packet *p, const struct endpoint *ep)
{
	return (p->eth.h_dest[0] & 1) || mac_equal(p->eth.h_dest, ep->gateway_mac);
}

#endif
