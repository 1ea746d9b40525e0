/*
 * The ICMPv6 checksum (RFC 4443, 2.3), and telling a complete one from a partial one.
 */
#ifndef TAPIR_CHECKSUM_H
#define TAPIR_CHECKSUM_H

#include "packet.h"

#define ICMPV6_MAX_LEN 88 /* the fixed part of a Neighbour Solicitation and 64 bytes of options */

struct icmpv6_pseudo {
	struct ipv6_addr source, dest;
	__be32 len;
	__be32 next_header;
};

struct icmpv6_message {
	__u8 type, code;
	__be16 checksum;
	__be32 flags;
	__u8 body[ICMPV6_MAX_LEN - 8];
};

_Static_assert(sizeof(struct icmpv6_message) == ICMPV6_MAX_LEN, "struct icmpv6_message");

struct icmpv6_sum {
	struct icmpv6_pseudo pseudo;
	struct icmpv6_message message; /* zero behind its end, which does not change a sum */
};

enum checksum {
	CHECKSUM_WRONG,
	CHECKSUM_COMPLETE,
	CHECKSUM_PARTIAL, /* it holds the sum of the pseudo header alone: NEEDS_CSUM of a vnet header */
};

static __always_inline __u16 checksum_fold(__s64 sum)
{
	__u32 s = sum;

	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return s;
}

/*
 * Reads an ICMPv6 message of 24 to ICMPV6_MAX_LEN bytes, as long as the IPv6 header says. False: it is of another
 * length, or the frame ends before.
 */
static __always_inline bool icmpv6_sum_load(struct icmpv6_sum *sum, const struct packet *p, __u32 off,
					    const struct ipv6hdr *ip6)
{
	__u32 len = bpf_ntohs(ip6->payload_len);

	__builtin_memset(sum, 0, sizeof(*sum));
	if (len < 24 || len > ICMPV6_MAX_LEN || packet_load(p, off, &sum->message, len))
		return false;
	sum->pseudo.source = *(const struct ipv6_addr *)&ip6->saddr;
	sum->pseudo.dest = *(const struct ipv6_addr *)&ip6->daddr;
	sum->pseudo.len = bpf_htonl(len);
	sum->pseudo.next_header = bpf_htonl(ip6->nexthdr);
	return true;
}

/*
 * A __sk_buff does not show ip_summed, but the checksum tells. Of the one in 65,536 solicitations whose complete
 * checksum equals the partial one it is taken as complete: no known stack leaves that of ND partial.
 */
static __always_inline enum checksum icmpv6_sum_verify(struct icmpv6_sum *sum)
{
	__u16 pseudo = checksum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&sum->pseudo, sizeof(sum->pseudo), 0));
	__u16 all = checksum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&sum->message, sizeof(sum->message), pseudo));

	if (all == 0xffff)
		return CHECKSUM_COMPLETE;
	return sum->message.checksum == pseudo ? CHECKSUM_PARTIAL : CHECKSUM_WRONG;
}

#endif
