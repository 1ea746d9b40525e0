/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Whose is a source address? And what the other headers need of MACs and addresses.
 */
#ifndef TAPIR_SHORTCUT_SOURCE_H
#define TAPIR_SHORTCUT_SOURCE_H

#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "shortcut.h"

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b; /* all MACs here are 2-aligned */

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

static __always_inline void copy_mac(__u8 *to, const __u8 *from)
{
	__u16 *x = (__u16 *)to;
	const __u16 *y = (const __u16 *)from;

	x[0] = y[0];
	x[1] = y[1];
	x[2] = y[2];
}

/* The key of an IPv4 address: ::ffff:a.b.c.d. */
static __always_inline void map_ipv4(struct ipv6_addr *to, __be32 addr)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = addr;
}

static __always_inline bool mapped_ipv4(const struct ipv6_addr *a)
{
	return (a->word[0] | a->word[1]) == 0 && a->word[2] == bpf_htonl(0xffff);
}

static __always_inline bool same_ipv6(const struct ipv6_addr *a, const struct ipv6_addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline bool owns_ipv4(const struct attachment *a, __be32 addr)
{
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= a->nr_ipv4)
			break;
		if (a->ipv4[i] == addr)
			return true;
	}
	return false;
}

static __always_inline bool owns_ipv6(const struct attachment *a, const struct ipv6_addr *addr)
{
	for (__u32 i = 0; i < TAPIR_MAX_ADDRESSES; i++) {
		if (i >= a->nr_ipv6)
			break;
		if (same_ipv6(&a->ipv6[i], addr))
			return true;
	}
	return false;
}

/*
 * On the uplink the source is asked for later, by the routes. At the host end guest_ingress has dropped the forgeries,
 * where they are forbidden, and what it let through is passed on. Returns PATH_UNKNOWN for the guest's own address.
 */
static __always_inline enum path_reason check_source_ipv4(const struct attachment *a, __be32 source,
							  enum path_hook hook)
{
	if (hook == HOOK_UPLINK_XDP || owns_ipv4(a, source))
		return PATH_UNKNOWN;
	/* 0.0.0.0 may be DHCP, which guest_ingress knows. */
	if (hook == HOOK_TAP_XDP && (a->flags & ATTACHMENT_SPOOF_CHECK) && source != 0)
		return PATH_DROP_SPOOF_IPV4;
	return PATH_PASS_SOURCE;
}

/* Link-local and unspecified: Neighbour Discovery, DAD and MLD, which guest_ingress knows. */
static __always_inline bool maybe_own_ipv6(const struct ipv6_addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (a->word[0] | a->word[1] | a->word[2] | a->word[3]) == 0;
}

static __always_inline enum path_reason check_source_ipv6(const struct attachment *a, const struct ipv6_addr *source,
							  enum path_hook hook)
{
	if (hook == HOOK_UPLINK_XDP || owns_ipv6(a, source))
		return PATH_UNKNOWN;
	if (hook == HOOK_TAP_XDP && (a->flags & ATTACHMENT_SPOOF_CHECK) && !maybe_own_ipv6(source))
		return PATH_DROP_SPOOF_IPV6;
	return PATH_PASS_SOURCE;
}

#endif
