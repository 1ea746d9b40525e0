/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters and trace.
 */
#ifndef TAPIR_SHORTCUT_SIGHT_H
#define TAPIR_SHORTCUT_SIGHT_H

#include "shortcut_decide.h"

static __always_inline void count_path(struct counter *counters, enum path_reason r, __u32 len)
{
	if ((__u32)r >= PATH_SLOTS)
		return;
	counters[r].frames++;
	counters[r].bytes += len;
}

/* What is not reserved in map paths is not counted. */
static __always_inline void count(const struct way *w, const struct attachment *a, enum path_hook hook,
				  enum path_reason r)
{
	struct path_counts *c = bpf_map_lookup_elem(&paths, &a->counters);
	struct counter *counters;

	if (!c)
		return;
	counters = c->by_hook[hook == HOOK_HOST_TC];
	count_path(counters, r, w->f.len);
	if (w->asked)
		count_path(counters, PATH_LOOKED_UP, w->f.len);
	if (w->complete && (r == PATH_TO_GUEST || r == PATH_TO_UPLINK))
		count_path(counters, PATH_CHECKSUM_COMPLETED, w->f.len);
}

/* Is the key the filter's flow, in this direction? */
static __always_inline bool traced_flow(const struct trace_filter *t, const struct ipv6_addr *source,
					const struct ipv6_addr *dest, __be16 source_port, __be16 dest_port)
{
	if ((t->flags & TRACE_SOURCE) && !same_ipv6(&t->source, source))
		return false;
	if ((t->flags & TRACE_DEST) && !same_ipv6(&t->dest, dest))
		return false;
	return (!t->source_port || t->source_port == source_port) && (!t->dest_port || t->dest_port == dest_port);
}

static __always_inline bool traced(const struct trace_filter *t, const struct flow_key *k)
{
	if (t->proto && t->proto != k->proto)
		return false;
	return traced_flow(t, &k->source, &k->dest, k->source_port, k->dest_port) ||
	       traced_flow(t, &k->dest, &k->source, k->dest_port, k->source_port);
}

static __noinline void describe(struct path_event *e, const struct way *w)
{
	e->verdict = w->verdict;
	e->len = w->f.len;
	e->gso_size = w->f.gso_size;
	e->target = w->target;
	e->proto = w->f.key.proto;
	e->source = w->f.key.source;
	e->dest = w->f.key.dest;
	e->source_port = w->f.key.source_port;
	e->dest_port = w->f.key.dest_port;
	e->pad = 0;
}

/* Returns false where the ring is full. */
static __noinline bool emit(const struct way *w, __u32 ifindex, enum path_hook hook, enum path_reason r, __u64 now)
{
	struct path_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return false;
	e->time = now;
	e->ifindex = ifindex;
	e->hook = hook;
	e->reason = r;
	describe(e, w);
	bpf_ringbuf_submit(e, 0);
	return true;
}

/* One read of the settings where nobody traces. Who traces says until when, so that a trace ends with its process. */
static __always_inline void trace(const struct way *w, struct shortcut_settings *s, __u32 ifindex,
				  enum path_hook hook, enum path_reason r)
{
	__u64 now;

	if (!s->trace_until)
		return;
	now = bpf_ktime_get_ns();
	if (now < s->trace_until && traced(&s->filter, &w->f.key) && !emit(w, ifindex, hook, r, now))
		__sync_fetch_and_add(&s->trace_lost, 1);
}

#endif
