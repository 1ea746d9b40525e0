/*
 * Turns a question into the gateway's answer, in place. Each answer is written by one store, so a frame is the question
 * or the answer and never half of both.
 */
#ifndef TAPIR_ANSWER_H
#define TAPIR_ANSWER_H

#include "decide.h"

#define NA_ROUTER    0x80000000
#define NA_SOLICITED 0x40000000
#define NA_OVERRIDE  0x20000000

/* The frame may be padded to 60 bytes: what is behind the ARP packet stays as the guest sent it. */
static __noinline enum reason answer_arp(struct packet *p, const struct endpoint *ep)
{
	struct {
		struct ethhdr eth;
		struct arp_ipv4 arp;
	} __attribute__((packed, aligned(2))) answer;

	__builtin_memcpy(answer.eth.h_dest, p->eth.h_source, ETH_ALEN);
	__builtin_memcpy(answer.eth.h_source, ep->gateway_mac, ETH_ALEN);
	answer.eth.h_proto = bpf_htons(ETH_P_ARP);

	answer.arp = p->arp;
	answer.arp.operation = bpf_htons(ARPOP_REPLY);
	__builtin_memcpy(answer.arp.sender_mac, ep->gateway_mac, ETH_ALEN);
	answer.arp.sender_ip = p->arp.target_ip;
	__builtin_memcpy(answer.arp.target_mac, p->arp.sender_mac, ETH_ALEN);
	answer.arp.target_ip = p->arp.sender_ip;

	if (bpf_skb_store_bytes(p->skb, 0, &answer, sizeof(answer), 0))
		return REASON_ANSWER_FAILED;
	return REASON_ARP_ANSWERED;
}

struct advertisement {
	__u16 align; /* puts the IPv6 header on a multiple of four; not sent */
	struct ethhdr eth;
	struct ipv6hdr ip6;
	/* From here on summed. */
	__u8 type, code;
	__be16 checksum;
	__be32 flags;
	struct ipv6_addr target;
	__u8 opt_type, opt_len;
	__u8 opt_mac[ETH_ALEN];
};

#define NA_FRAME_LEN (sizeof(struct advertisement) - sizeof(__u16))
#define NA_ICMP_LEN  (ND_NEIGHBOUR_LEN + 8)

_Static_assert(NA_FRAME_LEN == IPV6_HDR_END + NA_ICMP_LEN, "struct advertisement");

/*
 * A partial checksum stays partial, because no helper takes CHECKSUM_PARTIAL off an skb: the field is then the pseudo
 * header's sum, and csum_start and csum_offset of the solicitation fit the advertisement.
 */
static __always_inline void advertisement_sum(struct advertisement *na, bool partial)
{
	struct icmpv6_pseudo pseudo = {
		.source = *(struct ipv6_addr *)&na->ip6.saddr,
		.dest = *(struct ipv6_addr *)&na->ip6.daddr,
		.len = bpf_htonl(NA_ICMP_LEN),
		.next_header = bpf_htonl(NEXTHDR_ICMP),
	};
	__u16 sum = checksum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0));

	if (!partial)
		sum = ~checksum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&na->type, NA_ICMP_LEN, sum));
	na->checksum = sum;
}

/*
 * A solicited NA to who asked. To a DAD probe, which has no address to answer to, an unsolicited one to all nodes (RFC
 * 4861, 7.2.4). Router flag: set for the gateways alone, since clearing it for one would take the guest's default route
 * (7.2.5), and others on the link are no routers. Override flag: set for all, against RFC 4861's 7.2.8 for proxies:
 * nobody else can answer here, and a guest restored from a snapshot may hold another MAC.
 */
static __noinline enum reason answer_nd(struct packet *p, const struct endpoint *ep)
{
	bool dad = ipv6_unspecified(&p->nd.source);
	__u32 flags = NA_OVERRIDE;
	struct advertisement na;

	__builtin_memset(&na, 0, sizeof(na));
	if (gateway_has_ipv6(ep, &p->nd.target))
		flags |= NA_ROUTER;
	if (dad) {
		na.ip6.daddr.s6_addr32[0] = bpf_htonl(0xff020000); /* ff02::1 */
		na.ip6.daddr.s6_addr32[3] = bpf_htonl(1);
		na.eth.h_dest[0] = 0x33; /* 33:33:00:00:00:01, RFC 2464 */
		na.eth.h_dest[1] = 0x33;
		na.eth.h_dest[5] = 0x01;
	} else {
		flags |= NA_SOLICITED;
		__builtin_memcpy(&na.ip6.daddr, &p->nd.source, sizeof(p->nd.source));
		__builtin_memcpy(na.eth.h_dest, p->eth.h_source, ETH_ALEN);
	}
	__builtin_memcpy(na.eth.h_source, ep->gateway_mac, ETH_ALEN);
	na.eth.h_proto = bpf_htons(ETH_P_IPV6);
	na.ip6.version = 6;
	na.ip6.payload_len = bpf_htons(NA_ICMP_LEN);
	na.ip6.nexthdr = NEXTHDR_ICMP;
	na.ip6.hop_limit = 255;
	__builtin_memcpy(&na.ip6.saddr, &p->nd.target, sizeof(p->nd.target));
	na.type = ND_NEIGHBOUR_ADVERT;
	na.flags = bpf_htonl(flags);
	na.target = p->nd.target;
	na.opt_type = ND_OPT_TARGET_LLADDR;
	na.opt_len = 1;
	__builtin_memcpy(na.opt_mac, ep->gateway_mac, ETH_ALEN);
	advertisement_sum(&na, p->nd.partial_checksum);

	if (bpf_skb_change_tail(p->skb, NA_FRAME_LEN, 0) ||
	    bpf_skb_store_bytes(p->skb, 0, &na.eth, NA_FRAME_LEN, 0))
		return REASON_ANSWER_FAILED;
	return REASON_ND_ANSWERED;
}

#endif
