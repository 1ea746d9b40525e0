/*
 * The packet that an ICMP error quotes (RFC 792, RFC 4443): it went the other way, so what is the error's source is the
 * quote's destination. How much of it is there is up to who sent the error.
 */
#ifndef TAPIR_QUOTE_H
#define TAPIR_QUOTE_H

#include "ipv4.h"
#include "ipv6.h"

/* Checksums, from their header's start on. */
#define TCP_CHECK  16
#define UDP_CHECK  6 /* UDP-Lite's and DCCP's too */
#define ICMP_CHECK 2

#define ICMP_HEADER 8 /* of an error, to the quote */

#define ICMP_DEST_UNREACH    3
#define ICMP_SOURCE_QUENCH   4
#define ICMP_REDIRECT	     5
#define ICMP_TIME_EXCEEDED   11
#define ICMP_PARAMETERPROB   12
#define ICMPV6_INFORMATIONAL 128 /* types below are errors */

#define IPV6_SADDR 8
#define IPV6_DADDR 24

/* The change of one address, outwards that of a source. */
struct exchange4 {
	__be32 from, to;
	__u32 diff; /* of the one's complement sum */
	bool out;
};

struct exchange6 {
	struct ipv6_addr from, to;
	__u32 diff;
	bool out;
};

/* RFC 1624, eqn. 3. The sum over a whole packet is not zero, so neither form of zero is mistaken for the other. */
static __always_inline __u16 changed_check(__u16 check, __u32 diff)
{
	return ~checksum_fold((__u64)(__u16)~check + (diff & 0xffff) + (diff >> 16));
}

static __noinline enum reason walk_headers(struct packet *p, struct upper *u)
{
	return find_upper(p, u);
}

/* Where a transport has the checksum that covers addresses; 0 where it has none. ICMPv6's is ICMP_CHECK. */
static __always_inline __u32 covered_check(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return TCP_CHECK;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		return UDP_CHECK;
	default:
		return 0;
	}
}

/*
 * Changes the quoted transport's checksum where the quote holds it, and the difference that makes to the error's own, which
 * is at sum. The latter not by its pseudo header: a partial checksum is computed over all this later.
 */
static __noinline enum reason change_quoted(struct packet *p, __u32 at, __u32 sum, __u32 diff)
{
	__u16 old, new;

	if (packet_load(p, at, &old, sizeof(old)))
		return REASON_UNKNOWN;
	new = changed_check(old, diff);
	if (bpf_skb_store_bytes(p->skb, at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(p->skb, sum, old, new, sizeof(new)))
		return REASON_TRANSLATE_FAILED;
	return REASON_UNKNOWN;
}

/* A UDP datagram without a checksum has a zero. */
static __always_inline bool no_checksum(struct packet *p, __u32 at, __u8 proto)
{
	__u16 check = 1;

	return proto == IPPROTO_UDP && (packet_load(p, at, &check, sizeof(check)) || check == 0);
}

/* icmp is where the error's ICMP header is, end where its packet ends: padding is not part of a quote. */
static __noinline enum reason translate_quote4(struct packet *p, __u32 icmp, __u32 end, struct exchange4 *x)
{
	__u32 quote = icmp + ICMP_HEADER, at;
	struct iphdr ip;
	__u16 check;

	if (quote + sizeof(ip) > end || packet_load(p, quote, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return REASON_UNKNOWN;
	if ((x->out ? ip.daddr : ip.saddr) != x->from)
		return REASON_UNKNOWN;
	/* The address and the header's checksum cancel each other out in the error's. */
	check = changed_check(ip.check, x->diff);
	if (bpf_skb_store_bytes(p->skb, quote + __builtin_offsetof(struct iphdr, check), &check, sizeof(check), 0) ||
	    bpf_skb_store_bytes(p->skb, quote + (x->out ? __builtin_offsetof(struct iphdr, daddr) :
							   __builtin_offsetof(struct iphdr, saddr)),
				&x->to, sizeof(x->to), 0))
		return REASON_TRANSLATE_FAILED;
	at = covered_check(ip.protocol);
	if (!at || (ip.frag_off & bpf_htons(IPV4_OFFSET)))
		return REASON_UNKNOWN;
	at += quote + ip.ihl * 4;
	if (at + sizeof(check) > end || no_checksum(p, at, ip.protocol))
		return REASON_UNKNOWN;
	return change_quoted(p, at, icmp + ICMP_CHECK, x->diff);
}

static __noinline enum reason translate_quote6(struct packet *p, __u32 icmp, __u32 end, struct exchange6 *x)
{
	__u32 quote = icmp + ICMP_HEADER, address = quote + (x->out ? IPV6_DADDR : IPV6_SADDR), at;
	struct upper u = { .off = quote + sizeof(struct ipv6hdr) };
	struct ipv6_addr found;

	if (u.off > end || u.off > packet_len(p) || packet_load(p, address, &found, sizeof(found)) || !ipv6_equal(&found, &x->from))
		return REASON_UNKNOWN;
	if (packet_load(p, quote + __builtin_offsetof(struct ipv6hdr, nexthdr), &u.proto, sizeof(u.proto)))
		return REASON_UNKNOWN;
	if (bpf_skb_store_bytes(p->skb, address, &x->to, sizeof(x->to), 0) ||
	    bpf_l4_csum_replace(p->skb, icmp + ICMP_CHECK, 0, x->diff, 0))
		return REASON_TRANSLATE_FAILED;
	if (walk_headers(p, &u) != REASON_UNKNOWN || u.later)
		return REASON_UNKNOWN;
	at = u.proto == NEXTHDR_ICMP ? ICMP_CHECK : covered_check(u.proto);
	if (!at)
		return REASON_UNKNOWN;
	at += u.off;
	if (at + sizeof(__u16) > end || no_checksum(p, at, u.proto))
		return REASON_UNKNOWN;
	return change_quoted(p, at, icmp + ICMP_CHECK, x->diff);
}

#endif
