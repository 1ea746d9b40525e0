/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * May a flow take the shortcut? Only where the host's conntrack does not know it: a flow that NAT changed, or whose first
 * frames the host's stack has seen, goes on by way of the stack.
 */
#ifndef TAPIR_SHORTCUT_FLOW_H
#define TAPIR_SHORTCUT_FLOW_H

#include <linux/errno.h>

#include "shortcut_frame.h"
#include "shortcut_kernel.h"
#include "shortcut_maps.h"

/* How long an echo reply may take; as nf_conntrack_icmp_timeout. */
#define ECHO_LIFETIME 30000000000ULL

#define NSID_OWN BPF_F_CURRENT_NETNS

static __always_inline void reverse_key(struct flow_key *to, const struct flow_key *key)
{
	to->source = key->dest;
	to->dest = key->source;
	to->source_port = key->dest_port;
	to->dest_port = key->source_port;
	to->proto = key->proto;
}

/* Asks for one tuple, which is a flow's original or reply one. Returns 1: known, 0: unknown, -1: it could not be asked. */
static __always_inline int conntrack_has(void *ctx, enum path_hook hook, const struct flow_key *key, bool ipv6,
					 __s32 nsid)
{
	struct bpf_ct_opts___tapir opts = { .netns_id = nsid, .l4proto = key->proto };
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	__u32 size;

	if (ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, &key->source, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &key->dest, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = key->source_port;
		tuple.ipv6.dport = key->dest_port;
		size = sizeof(tuple.ipv6);
	} else {
		tuple.ipv4.saddr = key->source.word[3];
		tuple.ipv4.daddr = key->dest.word[3];
		tuple.ipv4.sport = key->source_port;
		tuple.ipv4.dport = key->dest_port;
		size = sizeof(tuple.ipv4);
	}
	if (hook == HOOK_HOST_TC)
		ct = bpf_skb_ct_lookup(ctx, &tuple, size, &opts, sizeof(opts));
	else
		ct = bpf_xdp_ct_lookup(ctx, &tuple, size, &opts, sizeof(opts));
	if (ct) {
		bpf_ct_release(ct);
		return 1;
	}
	return opts.error == -ENOENT ? 0 : -1;
}

/* Asks for both directions of a flow: a reply to a NATed one has its tuple there, and a new one may collide with it. */
static __always_inline enum verdict ask_conntrack(void *ctx, enum path_hook hook, const struct flow_key *key, bool ipv6,
						  __s32 nsid)
{
	struct flow_key reverse;
	int known = conntrack_has(ctx, hook, key, ipv6, nsid);

	if (known == 0) {
		reverse_key(&reverse, key);
		known = conntrack_has(ctx, hook, &reverse, ipv6, nsid);
	}
	if (known < 0)
		return VERDICT_UNKNOWN;
	return known ? VERDICT_DEFAULT : VERDICT_SHORTCUT;
}

static __noinline enum verdict ask_conntrack_xdp(struct xdp_md *ctx, const struct flow_key *key, bool ipv6, __s32 nsid)
{
	return ask_conntrack(ctx, HOOK_TAP_XDP, key, ipv6, nsid);
}

static __noinline enum verdict ask_conntrack_tc(struct __sk_buff *ctx, const struct flow_key *key, bool ipv6)
{
	return ask_conntrack(ctx, HOOK_HOST_TC, key, ipv6, NSID_OWN);
}

static __always_inline void to_flow4(struct flow4_key *to, const struct flow_key *key)
{
	to->source = key->source.word[3];
	to->dest = key->dest.word[3];
	to->source_port = key->source_port;
	to->dest_port = key->dest_port;
	to->proto = key->proto;
}

static __always_inline struct flow *find_flow(const struct flow_key *key, bool ipv6)
{
	struct flow4_key key4;

	if (ipv6)
		return bpf_map_lookup_elem(&flows6, key);
	to_flow4(&key4, key);
	return bpf_map_lookup_elem(&flows4, &key4);
}

/* Not inlined: it is for a flow's first frame. */
static __noinline void add_flow(const struct flow_key *key, bool ipv6, const struct flow *flow)
{
	struct flow4_key key4;

	if (ipv6) {
		bpf_map_update_elem(&flows6, key, flow, BPF_ANY);
		return;
	}
	to_flow4(&key4, key);
	bpf_map_update_elem(&flows4, &key4, flow, BPF_ANY);
}

/*
 * Does a verdict still hold for this frame? A SYN begins a flow anew, under a tuple that may be a Service's by now, and an RST
 * may be all that a backend answers to one.
 */
static __always_inline bool verdict_holds(const struct flow *flow, const struct frame *f,
					  const struct shortcut_settings *s)
{
	if (flow->epoch != s->epoch || f->anew)
		return false;
	return f->key.proto == IPPROTO_TCP || bpf_jiffies64() - flow->tick < s->udp_lifetime;
}

/*
 * The verdict on a TCP or UDP flow. A verdict is written in place where there is one: readers of the same flow on another
 * CPU see the old or the new one.
 */
static __always_inline enum verdict flow_verdict(void *ctx, enum path_hook hook, const struct frame *f, __s32 nsid,
						 const struct shortcut_settings *s, bool *asked)
{
	struct flow *flow = find_flow(&f->key, f->ipv6);
	struct flow fresh = {};

	if (flow && verdict_holds(flow, f, s))
		return flow->verdict;
	*asked = true;
	/* The epoch first: what changes in between is asked again. */
	fresh.epoch = s->epoch;
	fresh.asked = bpf_ktime_get_coarse_ns();
	fresh.tick = bpf_jiffies64();
	if (hook == HOOK_HOST_TC)
		fresh.verdict = ask_conntrack_tc(ctx, &f->key, f->ipv6);
	else
		fresh.verdict = ask_conntrack_xdp(ctx, &f->key, f->ipv6, nsid);
	if (fresh.verdict == VERDICT_UNKNOWN)
		return VERDICT_UNKNOWN;
	if (!flow) {
		add_flow(&f->key, f->ipv6, &fresh);
	} else {
		flow->verdict = fresh.verdict;
		flow->asked = fresh.asked;
		flow->tick = fresh.tick;
		flow->epoch = fresh.epoch;
	}
	return fresh.verdict;
}

/*
 * Conntrack cannot be asked for ICMP, so a reply goes the way that its request went. A request is remembered before it
 * leaves.
 */
static __always_inline enum path_reason echo_may(const struct frame *f, const struct shortcut_settings *s)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct flow fresh = { .asked = now, .epoch = s->epoch, .verdict = VERDICT_SHORTCUT };
	struct flow_key request;
	struct flow *flow;

	if (f->echo == ECHO_REQUEST) {
		flow = find_flow(&f->key, f->ipv6);
		if (flow)
			flow->asked = now;
		else
			add_flow(&f->key, f->ipv6, &fresh);
		return PATH_UNKNOWN;
	}
	request.source = f->key.dest;
	request.dest = f->key.source;
	request.source_port = f->key.source_port; /* the identifier, the same in both directions */
	request.dest_port = 0;
	request.proto = f->key.proto;
	flow = find_flow(&request, f->ipv6);
	return flow && now - flow->asked < ECHO_LIFETIME ? PATH_UNKNOWN : PATH_PASS_NO_REQUEST;
}

/* The flow that an error is about. Not inlined: it is rare. */
static __noinline bool about_shortcut(const struct frame *f, struct flow_key *about)
{
	struct flow *flow;

	about->source = f->key.dest;
	about->dest = f->key.source;
	about->source_port = f->quote.source_port;
	about->dest_port = f->quote.dest_port;
	about->proto = f->quote.proto;
	flow = find_flow(about, f->ipv6);
	return flow && flow->verdict == VERDICT_SHORTCUT;
}

/*
 * An error goes the way that the packet went which it is about: conntrack does not know that packet's flow, and would find the
 * error invalid. A verdict may be older than that packet, which a Service may have led here since, so conntrack is asked. Of echo
 * it cannot be.
 */
static __always_inline enum path_reason error_may(void *ctx, enum path_hook hook, const struct frame *f, __s32 nsid,
						  bool *asked)
{
	struct flow_key about;
	enum verdict v;

	if (!about_shortcut(f, &about))
		return PATH_PASS_PROTOCOL;
	if (about.proto == f->key.proto)
		return PATH_UNKNOWN;
	*asked = true;
	if (hook == HOOK_HOST_TC)
		v = ask_conntrack_tc(ctx, &about, f->ipv6);
	else
		v = ask_conntrack_xdp(ctx, &about, f->ipv6, nsid);
	return v == VERDICT_SHORTCUT ? PATH_UNKNOWN : PATH_PASS_PROTOCOL;
}

/* Returns PATH_UNKNOWN where the frame's flow may take the shortcut. */
static __always_inline enum path_reason flow_may(void *ctx, enum path_hook hook, const struct frame *f, __s32 nsid,
						 const struct shortcut_settings *s, enum verdict *verdict, bool *asked)
{
	if (f->error)
		return PATH_UNKNOWN; /* decide() has asked error_may() */
	if (f->echo != ECHO_NONE)
		return echo_may(f, s);
	*verdict = flow_verdict(ctx, hook, f, nsid, s, asked);
	switch (*verdict) {
	case VERDICT_SHORTCUT:
		return PATH_UNKNOWN;
	case VERDICT_DEFAULT:
		return PATH_PASS_CONNTRACK;
	default:
		return PATH_PASS_LOOKUP_FAILED;
	}
}

#endif
