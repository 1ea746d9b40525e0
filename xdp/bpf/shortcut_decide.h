/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The one decision about a frame, for XDP and tc alike. It only reads the frame: who calls it changes and redirects it,
 * and counts the reason. Nothing understood wrongly can do harm: in doubt a frame passes, and the default path is right for all.
 */
#ifndef TAPIR_SHORTCUT_DECIDE_H
#define TAPIR_SHORTCUT_DECIDE_H

#include "shortcut_checksum.h"
#include "shortcut_flow.h"

/* Where a frame goes: what decide() found. */
struct way {
	struct frame f;
	const __u8 *dst_mac, *src_mac;
	__u32 target;	   /* ifindex of the TAP or uplink; key in map devices or uplinks */
	__u32 host;	   /* ifindex of the target's host end */
	enum verdict verdict;
	bool asked;	   /* conntrack was */
	bool complete;	   /* a partial checksum was completed */
	bool write_check;  /* new_check is to be written */
	__be16 new_check;
	bool translate;	   /* the frame leaves with key.source and dest in place of its addresses; in XDP alone */
	struct ipv6_addr dest;
	__u32 diff;	   /* of sums, from the frame's addresses to those */
};

/* The L3 length that must fit: of a GSO frame, that of one segment. */
static __always_inline __u32 packet_len(const struct frame *f)
{
	return f->gso_size ? f->headers_len + f->gso_size : f->len - ETH_HLEN;
}

/* Returns PATH_TO_GUEST where the frame may go to that guest, flows apart. */
static __always_inline enum path_reason to_guest(struct way *w, const struct attachment *a, const struct pod *pod,
						 enum path_hook hook)
{
	if (pod->tap == a->tap)
		return PATH_PASS_NO_TARGET; /* to itself */
	if ((a->flags | pod->flags) & ATTACHMENT_NO_SHORTCUT)
		return PATH_PASS_FLAGGED;
	w->target = pod->tap;
	w->host = pod->host;
	w->dst_mac = pod->guest_mac;
	w->src_mac = pod->gateway_mac;
	if (hook != HOOK_HOST_TC && (pod->flags & (ATTACHMENT_TRANSLATE4 | ATTACHMENT_TRANSLATE6))) {
		if (w->f.error)
			return PATH_PASS_TRANSLATED;
		/* From the address that the guest itself has: pod_ingress drops it. */
		if (same_ipv6(&w->f.key.source, &pod->inside))
			return PATH_PASS_SOURCE;
		w->translate = true;
		w->dest = pod->inside;
		w->diff = pod->diff;
	}
	if (packet_len(&w->f) > pod->mtu)
		return PATH_PASS_MTU;
	/*
	 * In XDP the device is looked up by what notes where to redirect to: that happens where the program returns
	 * XDP_REDIRECT, and is else forgotten.
	 */
	if (hook == HOOK_HOST_TC)
		return bpf_map_lookup_elem(&devices, &pod->tap) ? PATH_TO_GUEST : PATH_PASS_NO_DEVICE;
	return bpf_redirect_map(&devices, pod->tap, XDP_PASS) == XDP_REDIRECT ? PATH_TO_GUEST : PATH_PASS_NO_DEVICE;
}

static __always_inline struct route *find_route(const struct ipv6_addr *addr, const struct shortcut_settings *s)
{
	struct route_key key = { .bits = 128, .addr = *addr };

	return s->nr_routes ? bpf_map_lookup_elem(&routes, &key) : NULL;
}

/* Returns PATH_TO_UPLINK where the frame may go to that next hop, flows apart. */
static __always_inline enum path_reason to_uplink(struct way *w, const struct attachment *a, const struct route *route,
						  enum path_hook hook)
{
	if (a->flags & ATTACHMENT_NO_SHORTCUT)
		return PATH_PASS_FLAGGED;
	if (!(route->flags & ROUTE_USABLE))
		return PATH_PASS_NO_NEXT_HOP;
	w->target = route->uplink;
	w->dst_mac = route->dst_mac;
	w->src_mac = route->src_mac;
	if (packet_len(&w->f) > route->mtu)
		return PATH_PASS_MTU;
	/* Map uplinks has those that take frames from XDP; tc can send to all. */
	if (hook == HOOK_HOST_TC)
		return bpf_map_lookup_elem(&attachments, &route->uplink) ? PATH_TO_UPLINK : PATH_PASS_NO_DEVICE;
	return bpf_redirect_map(&uplinks, route->uplink, XDP_PASS) == XDP_REDIRECT ? PATH_TO_UPLINK :
										     PATH_PASS_NO_DEVICE;
}

/*
 * Is the frame from behind the uplink that it came by? Only then does the answer leave by it, and neither path sees half
 * of a flow.
 */
static __always_inline bool from_behind(const struct frame *f, __u32 uplink, const struct shortcut_settings *s)
{
	struct route *route = find_route(&f->key.source, s);

	if (f->ipv6 && mapped_ipv4(&f->key.source))
		return false;
	return route && (route->flags & ROUTE_USABLE) && route->uplink == uplink;
}

/* Finds the target. Returns PATH_TO_GUEST, PATH_TO_UPLINK, or why there is no way. */
static __always_inline enum path_reason find_way(struct way *w, const struct attachment *a, __u32 ifindex,
						 const struct shortcut_settings *s, enum path_hook hook)
{
	const struct pod *pod;
	const struct route *route;

	/* The key of an IPv4 address, in a packet of IPv6: it is nobody's. */
	if (w->f.ipv6 && mapped_ipv4(&w->f.key.dest))
		return PATH_PASS_NO_TARGET;
	pod = bpf_map_lookup_elem(&pods, &w->f.key.dest);
	if (pod) {
		if (hook == HOOK_UPLINK_XDP && !from_behind(&w->f, ifindex, s))
			return PATH_PASS_SOURCE;
		return to_guest(w, a, pod, hook);
	}
	if (hook == HOOK_UPLINK_XDP)
		return PATH_PASS_NO_TARGET;
	route = find_route(&w->f.key.dest, s);
	return route ? to_uplink(w, a, route, hook) : PATH_PASS_NO_TARGET;
}

/* Which runs of XDP a program takes frames in. */
enum runs {
	RUNS_NATIVE,  /* the native one alone */
	RUNS_GENERIC, /* every run is a generic one */
	RUNS_EITHER,
};

/*
 * In the generic run an skb goes with the frame: it may be of several segments, and its checksum is not the frame's alone.
 * A program for native mode leaves it to tc, where nothing of it is lost.
 */
static __always_inline enum path_reason see_run(struct xdp_md *ctx, enum runs runs, bool *generic)
{
	*generic = runs == RUNS_GENERIC || generic_run(ctx);
	if (*generic && (runs == RUNS_NATIVE || generic_gso_size(ctx)))
		return PATH_PASS_GENERIC;
	return PATH_UNKNOWN;
}

/* Sees to the checksum in XDP; returns PATH_UNKNOWN where it is, or will be, complete. */
static __always_inline enum path_reason see_checksum(struct xdp_md *ctx, struct way *w, bool generic)
{
	__be16 *check = checksum_at(&w->f);
	__u32 diff = 0;

	if (!check)
		return PATH_PASS_LENGTH;
	if (w->f.translated && !w->translate) {
		w->dest = w->f.key.dest;
		w->translate = true;
	}
	w->diff += w->f.source_diff;
	if (has_pseudo_header(&w->f))
		diff = w->diff;
	if (!checksum_partial(&w->f, *check)) {
		if (w->translate) {
			w->new_check = translated_checksum(&w->f, *check, diff);
			w->write_check = true;
		}
		return PATH_UNKNOWN;
	}
	if (generic || !complete_checksum(ctx, &w->f, diff, &w->new_check))
		return PATH_PASS_CHECKSUM;
	w->complete = true;
	w->write_check = true;
	return PATH_UNKNOWN;
}

/* Returns PATH_TO_GUEST, PATH_TO_UPLINK, or why not. w->f has data, data_end, len and gso_size. */
static __always_inline enum path_reason decide(void *ctx, struct way *w, const struct attachment *a, __u32 ifindex,
					       const struct shortcut_settings *s, enum path_hook hook, enum runs runs)
{
	enum path_reason r = parse(&w->f, a, s, hook), may;
	__s32 nsid = hook == HOOK_TAP_XDP ? a->host_nsid : NSID_OWN;
	bool generic = false;

	if (r != PATH_UNKNOWN)
		return r;
	if (w->f.error) {
		r = error_may(ctx, hook, &w->f, nsid, &w->asked);
		if (r != PATH_UNKNOWN)
			return r;
	}
	if (hook != HOOK_HOST_TC) {
		r = see_run(ctx, runs, &generic);
		if (r != PATH_UNKNOWN)
			return r;
	}
	r = find_way(w, a, ifindex, s, hook);
	if (r != PATH_TO_GUEST && r != PATH_TO_UPLINK)
		return r;
	may = flow_may(ctx, hook, &w->f, nsid, s, &w->verdict, &w->asked);
	if (may != PATH_UNKNOWN)
		return may;
	if (hook != HOOK_HOST_TC) {
		may = see_checksum(ctx, w, generic);
		if (may != PATH_UNKNOWN)
			return may;
	}
	return r;
}

/* Makes the frame what a router would. Returns false before anything was written. */
static __always_inline bool rewrite(const struct way *w)
{
	void *data = w->f.data, *data_end = w->f.data_end;
	struct ethhdr *eth = data;
	__be16 *check = (void *)0;

	if (w->write_check) {
		check = checksum_at(&w->f);
		if (!check)
			return false;
	}
	if (w->f.ipv6) {
		struct ipv6hdr *ip6 = data + ETH_HLEN;

		if ((void *)(ip6 + 1) > data_end)
			return false;
		ip6->hop_limit--;
		if (w->translate) {
			__builtin_memcpy(&ip6->saddr, &w->f.key.source, sizeof(ip6->saddr));
			__builtin_memcpy(&ip6->daddr, &w->dest, sizeof(ip6->daddr));
		}
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 sum;

		if ((void *)(ip + 1) > data_end)
			return false;
		/* RFC 1624, as ip_decrease_ttl(). */
		sum = ip->check + bpf_htons(0x0100);
		ip->check = sum + (sum >= 0xffff);
		ip->ttl--;
		if (w->translate) {
			ip->saddr = w->f.key.source.word[3];
			ip->daddr = w->dest.word[3];
			ip->check = ~sum_fold((__u64)(__u16)~ip->check + w->diff);
		}
	}
	copy_mac(eth->h_dest, w->dst_mac);
	copy_mac(eth->h_source, w->src_mac);
	if (check)
		*check = w->new_check;
	return true;
}

#endif
