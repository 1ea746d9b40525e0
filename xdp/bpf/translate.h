/*
 * Translates between the guest's addresses, the same in each clone of a snapshot, and the pod's. Without state: what
 * changes is one address, every checksum that covers it, and in an ICMP error the same address in the quoted packet.
 */
#ifndef TAPIR_TRANSLATE_H
#define TAPIR_TRANSLATE_H

#include "quote.h"

/* The kernel's helper knows whether the skb's checksum is partial, and then changes the pseudo header's sum in it. */
static __always_inline enum reason change_transport(struct packet *p, __u32 at, __u8 proto, __u32 diff)
{
	__u64 flags = BPF_F_PSEUDO_HDR;

	if (proto == IPPROTO_UDP)
		flags |= BPF_F_MARK_MANGLED_0; /* and a zero stays one */
	if (at + sizeof(__be16) > packet_len(p))
		return REASON_UNTRANSLATABLE;
	return bpf_l4_csum_replace(p->skb, at, 0, diff, flags) ? REASON_TRANSLATE_FAILED : REASON_UNKNOWN;
}

/* The bytes of an IPv4 header from its checksum on, which are changed as one. */
struct ipv4_tail {
	__be16 check;
	__be32 saddr, daddr;
} __attribute__((packed, aligned(2)));

#define IPV4_TAIL 10

_Static_assert(sizeof(struct ipv4_tail) == 10, "struct ipv4_tail");

static __always_inline bool icmp_error(__u8 type)
{
	return type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH || type == ICMP_REDIRECT ||
	       type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* An IPv4 packet whose source (outwards) or destination is from. Returns REASON_UNKNOWN where it was changed. */
static __noinline enum reason translate_ipv4(struct packet *p, const struct iphdr *ip, struct exchange4 *x)
{
	__u32 l4 = ETH_HLEN + ip->ihl * 4, at;
	struct ipv4_tail tail;
	enum reason r;
	__u8 type;

	if (ip->protocol == IPPROTO_AH)
		return REASON_UNTRANSLATABLE;
	if (!(ip->frag_off & bpf_htons(IPV4_OFFSET))) {
		at = covered_check(ip->protocol);
		if (at) {
			r = change_transport(p, l4 + at, ip->protocol, x->diff);
			if (r != REASON_UNKNOWN)
				return r;
		}
		if (ip->protocol == IPPROTO_ICMP && !packet_load(p, l4, &type, sizeof(type)) && icmp_error(type)) {
			r = translate_quote4(p, l4, ETH_HLEN + bpf_ntohs(ip->tot_len), x);
			if (r != REASON_UNKNOWN)
				return r;
		}
	}
	tail.saddr = x->out ? x->to : ip->saddr;
	tail.daddr = x->out ? ip->daddr : x->to;
	tail.check = changed_check(ip->check, x->diff);
	if (bpf_skb_store_bytes(p->skb, ETH_HLEN + IPV4_TAIL, &tail, sizeof(tail), 0))
		return REASON_TRANSLATE_FAILED;
	return REASON_UNKNOWN;
}

/* Finds the upper header, without a walk where it is the next one. */
static __always_inline enum reason find_transport(struct packet *p, struct upper *u, bool out)
{
	__u8 stops;
	enum reason r;

	if (u->proto == IPPROTO_TCP || u->proto == IPPROTO_UDP || u->proto == NEXTHDR_ICMP)
		return REASON_UNKNOWN;
	r = walk_headers(p, u);
	if (r != REASON_UNKNOWN || u->auth)
		return REASON_UNTRANSLATABLE;
	if (!out && u->routing_off && (packet_load(p, u->routing_off + 3, &stops, sizeof(stops)) || stops))
		return REASON_UNTRANSLATABLE;
	return REASON_UNKNOWN;
}

static __always_inline bool neighbour_discovery(__u8 type)
{
	return type >= ND_ROUTER_SOLICIT && type <= ND_REDIRECT;
}

/* As translate_ipv4(). u is behind the IPv6 header. */
static __noinline enum reason translate_ipv6(struct packet *p, struct upper *u, __u32 end, struct exchange6 *x)
{
	enum reason r = find_transport(p, u, x->out);
	__u32 at;
	__u8 type;

	if (r != REASON_UNKNOWN)
		return r;
	at = u->proto == NEXTHDR_ICMP ? ICMP_CHECK : covered_check(u->proto);
	if (at && !u->later) {
		r = change_transport(p, u->off + at, u->proto, x->diff);
		if (r != REASON_UNKNOWN)
			return r;
	}
	if (u->proto == NEXTHDR_ICMP && !u->later && !packet_load(p, u->off, &type, sizeof(type)) &&
	    type < ICMPV6_INFORMATIONAL) {
		r = translate_quote6(p, u->off, end, x);
		if (r != REASON_UNKNOWN)
			return r;
	}
	if (bpf_skb_store_bytes(p->skb, ETH_HLEN + (x->out ? IPV6_SADDR : IPV6_DADDR), &x->to, sizeof(x->to), 0))
		return REASON_TRANSLATE_FAILED;
	return REASON_UNKNOWN;
}

static __always_inline void exchange_ipv4(struct exchange4 *x, const struct endpoint *ep, bool out)
{
	x->out = out;
	x->from = out ? ep->ipv4[0].addr : ep->outside4;
	x->to = out ? ep->outside4 : ep->ipv4[0].addr;
	x->diff = out ? ep->diff4 : (__u16)~ep->diff4;
}

static __always_inline void exchange_ipv6(struct exchange6 *x, const struct endpoint *ep, bool out)
{
	x->out = out;
	x->from = out ? ep->ipv6[0].addr : ep->outside6;
	x->to = out ? ep->outside6 : ep->ipv6[0].addr;
	x->diff = out ? ep->diff6 : (__u16)~ep->diff6;
}

static __always_inline enum reason to_outside_ipv4(struct packet *p, const struct endpoint *ep)
{
	const struct iphdr *ip = &p->ip4.ip; /* zero where the frame ends in it */
	struct exchange4 x;

	if (ip->version != 4 || ip->ihl < 5 || ip->saddr != ep->ipv4[0].addr)
		return REASON_UNKNOWN;
	exchange_ipv4(&x, ep, true);
	return translate_ipv4(p, ip, &x);
}

static __always_inline enum reason to_outside_ipv6(struct packet *p, const struct endpoint *ep)
{
	const struct ipv6hdr *ip6 = &p->ip6; /* zero where the frame ends in it */
	struct upper u = { .off = IPV6_HDR_END, .proto = ip6->nexthdr };
	struct exchange6 x;
	__u8 type;

	if (ip6->version != 6)
		return REASON_UNKNOWN;
	if (u.proto == NEXTHDR_ICMP && !packet_load(p, u.off, &type, sizeof(type)) && neighbour_discovery(type))
		return REASON_INSIDE_ONLY;
	if (!ipv6_equal((struct ipv6_addr *)&ip6->saddr, &ep->ipv6[0].addr))
		return REASON_UNKNOWN;
	exchange_ipv6(&x, ep, true);
	return translate_ipv6(p, &u, IPV6_HDR_END + bpf_ntohs(ip6->payload_len), &x);
}

/* A legal frame of the guest's, whose Ethernet header p has. Returns REASON_UNKNOWN where it may go on. */
static __noinline enum reason to_outside(struct packet *p, const struct endpoint *ep)
{
	switch (p->eth.h_proto) {
	case bpf_htons(ETH_P_IP):
		return ep->flags & ENDPOINT_TRANSLATE4 ? to_outside_ipv4(p, ep) : REASON_UNKNOWN;
	case bpf_htons(ETH_P_ARP):
		return ep->flags & ENDPOINT_TRANSLATE4 ? REASON_INSIDE_ONLY : REASON_UNKNOWN;
	case bpf_htons(ETH_P_IPV6):
		return ep->flags & ENDPOINT_TRANSLATE6 ? to_outside_ipv6(p, ep) : REASON_UNKNOWN;
	default:
		return REASON_UNKNOWN;
	}
}

static __always_inline enum reason to_inside_ipv4(struct packet *p, const struct endpoint *ep)
{
	__be32 inside = ep->ipv4[0].addr;
	struct exchange4 x;
	struct iphdr ip;

	if (packet_load(p, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return REASON_UNKNOWN;
	if (ip.saddr == inside && inside != ep->outside4)
		return REASON_INSIDE_ADDRESS;
	if (ip.daddr != ep->outside4)
		return ip.daddr == inside ? REASON_INSIDE_ADDRESS : REASON_UNKNOWN;
	exchange_ipv4(&x, ep, false);
	return translate_ipv4(p, &ip, &x);
}

static __always_inline enum reason to_inside_ipv6(struct packet *p, const struct endpoint *ep)
{
	struct ipv6hdr ip6 __attribute__((aligned(8)));
	const struct ipv6_addr *inside = &ep->ipv6[0].addr;
	struct upper u = { .off = IPV6_HDR_END };
	struct exchange6 x;

	if (packet_load(p, ETH_HLEN, &ip6, sizeof(ip6)) || ip6.version != 6)
		return REASON_UNKNOWN;
	if (ipv6_equal((struct ipv6_addr *)&ip6.saddr, inside) && !ipv6_equal(inside, &ep->outside6))
		return REASON_INSIDE_ADDRESS;
	if (!ipv6_equal((struct ipv6_addr *)&ip6.daddr, &ep->outside6))
		return ipv6_equal((struct ipv6_addr *)&ip6.daddr, inside) ? REASON_INSIDE_ADDRESS : REASON_UNKNOWN;
	u.proto = ip6.nexthdr;
	exchange_ipv6(&x, ep, false);
	return translate_ipv6(p, &u, IPV6_HDR_END + bpf_ntohs(ip6.payload_len), &x);
}

/* A frame for the guest. Returns REASON_UNKNOWN where it may go on. */
static __noinline enum reason to_inside(struct packet *p, const struct endpoint *ep)
{
	switch (p->skb->protocol) {
	case bpf_htons(ETH_P_IP):
		return ep->flags & ENDPOINT_TRANSLATE4 ? to_inside_ipv4(p, ep) : REASON_UNKNOWN;
	case bpf_htons(ETH_P_IPV6):
		return ep->flags & ENDPOINT_TRANSLATE6 ? to_inside_ipv6(p, ep) : REASON_UNKNOWN;
	default:
		return REASON_UNKNOWN;
	}
}

#endif
