/*
 * Whose is an address? Unused slots of an endpoint are zero and lie beyond its counts, so that the unspecified address
 * is nobody's.
 */
#ifndef TAPIR_ADDRESS_H
#define TAPIR_ADDRESS_H

#include "packet.h"

static __always_inline bool guest_has_ipv4(const struct endpoint *ep, __be32 addr)
{
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= ep->nr_ipv4)
			break;
		if (ep->ipv4[i].addr == addr)
			return true;
	}
	return false;
}

/* Is addr a host's address on the link that the prefix describes? RFC 3021: a /31 has no broadcast. */
static __always_inline bool ipv4_on_link(const struct ipv4_prefix *prefix, __be32 addr)
{
	__be32 host = ~prefix->mask;

	if ((addr ^ prefix->addr) & prefix->mask)
		return false;
	if (bpf_ntohl(host) <= 1)
		return true;
	return (addr & host) != 0 && (addr & host) != host;
}

static __always_inline bool ipv4_multicast(__be32 addr)
{
	return bpf_ntohl(addr) >> 28 == 0xe;
}

/* Does the gateway answer ARP for addr? For its own and for all others on the guest's link. */
static __always_inline bool gateway_answers_ipv4(const struct endpoint *ep, __be32 addr)
{
	if (guest_has_ipv4(ep, addr))
		return false;
	for (__u32 i = 0; i < TAPIR_MAX_GATEWAYS; i++) {
		if (i >= ep->nr_ipv4_gateways)
			break;
		if (ep->ipv4_gateways[i] == addr)
			return true;
	}
	if (ipv4_multicast(addr))
		return false;
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= ep->nr_ipv4)
			break;
		if (ipv4_on_link(&ep->ipv4[i], addr))
			return true;
	}
	return false;
}

static __always_inline bool ipv6_equal(const struct ipv6_addr *a, const struct ipv6_addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline bool ipv6_unspecified(const struct ipv6_addr *a)
{
	return (a->word[0] | a->word[1] | a->word[2] | a->word[3]) == 0;
}

static __always_inline bool ipv6_multicast(const struct ipv6_addr *a)
{
	return (a->word[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* fe80::/10: each node makes itself such addresses, and they are never routed. */
static __always_inline bool ipv6_link_local(const struct ipv6_addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Is a the solicited-node multicast address of target, ff02::1:ffXX:XXXX (RFC 4291, 2.7.1)? */
static __always_inline bool ipv6_solicited_node(const struct ipv6_addr *a, const struct ipv6_addr *target)
{
	return a->word[0] == bpf_htonl(0xff020000) && a->word[1] == 0 && a->word[2] == bpf_htonl(1) &&
	       a->word[3] == (bpf_htonl(0xff000000) | (target->word[3] & bpf_htonl(0x00ffffff)));
}

static __always_inline bool guest_has_ipv6(const struct endpoint *ep, const struct ipv6_addr *addr)
{
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= ep->nr_ipv6)
			break;
		if (ipv6_equal(&ep->ipv6[i].addr, addr))
			return true;
	}
	return false;
}

static __always_inline bool ipv6_on_link(const struct ipv6_prefix *prefix, const struct ipv6_addr *addr)
{
	__be32 differs = 0;

	for (int i = 0; i < 4; i++)
		differs |= (addr->word[i] ^ prefix->addr.word[i]) & prefix->mask.word[i];
	return differs == 0;
}

/* A router of the guest's: one whose advertisements carry the Router flag. */
static __always_inline bool gateway_has_ipv6(const struct endpoint *ep, const struct ipv6_addr *addr)
{
	for (__u32 i = 0; i < TAPIR_MAX_GATEWAYS; i++) {
		if (i >= ep->nr_ipv6_gateways)
			break;
		if (ipv6_equal(&ep->ipv6_gateways[i], addr))
			return true;
	}
	return false;
}

/* Does the gateway answer Neighbour Solicitations for addr? For its own and for all others on the guest's link. */
static __always_inline bool gateway_answers_ipv6(const struct endpoint *ep, const struct ipv6_addr *addr)
{
	if (guest_has_ipv6(ep, addr))
		return false;
	if (gateway_has_ipv6(ep, addr))
		return true;
	if (ipv6_multicast(addr) || ipv6_unspecified(addr))
		return false;
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= ep->nr_ipv6)
			break;
		if (ipv6_on_link(&ep->ipv6[i], addr))
			return true;
	}
	return false;
}

#endif
