// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The programs of the shortcut. They call kernel functions and are relocated against the kernel's BTF, so they are an
 * object of their own beside the redirect programs, which load where none of that is.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "shortcut_sight.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline struct shortcut_settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline bool taken(enum path_reason r)
{
	return r == PATH_TO_GUEST || r == PATH_TO_UPLINK;
}

static __always_inline int xdp_run(struct xdp_md *ctx, enum path_hook hook, enum runs runs)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &ifindex);
	struct shortcut_settings *s = get_settings();
	struct way w = {};
	enum path_reason r;
	int verdict = XDP_PASS;

	if (!a || !s)
		return XDP_PASS;
	w.f.data = (void *)(long)ctx->data;
	w.f.data_end = (void *)(long)ctx->data_end;
	w.f.len = w.f.data_end - w.f.data;
	r = decide(ctx, &w, a, ifindex, s, hook, runs);
	if (taken(r)) {
		verdict = XDP_REDIRECT; /* to where decide() noted */
		if (!rewrite(&w))
			r = PATH_DROP_ABORTED;
	}
	if (r >= PATH_DROP_SPOOF_MAC)
		verdict = XDP_DROP;
	count(&w, a, hook, r);
	trace(&w, s, ifindex, hook, r);
	return verdict;
}

/* On the TAP in native mode: what the guest sends. */
SEC("xdp")
int guest_xdp(struct xdp_md *ctx)
{
	return xdp_run(ctx, HOOK_TAP_XDP, RUNS_NATIVE);
}

/* On the TAP in generic mode. */
SEC("xdp")
int guest_xdp_skb(struct xdp_md *ctx)
{
	return xdp_run(ctx, HOOK_TAP_XDP, RUNS_GENERIC);
}

/* On the uplink, in either mode: what other nodes send. */
SEC("xdp")
int uplink_xdp(struct xdp_md *ctx)
{
	return xdp_run(ctx, HOOK_UPLINK_XDP, RUNS_EITHER);
}

/* A guest chooses by its vnet header how much of a frame is linear. */
static __always_inline bool pull_headers(struct __sk_buff *skb)
{
	__u32 need = skb->len < FRAME_HEADERS ? skb->len : FRAME_HEADERS;

	return (void *)(long)skb->data_end - (void *)(long)skb->data >= need || !bpf_skb_pull_data(skb, need);
}

/* The skb keeps its segments and its partial checksum: who transmits or reads it sees to both. */
static __always_inline int tc_send(const struct way *w, enum path_reason *r)
{
	if (!rewrite(w)) {
		*r = PATH_DROP_ABORTED;
		return TC_ACT_SHOT;
	}
	return *r == PATH_TO_GUEST ? bpf_redirect_peer(w->host, 0) : bpf_redirect(w->target, 0);
}

/* On the host end: what XDP on the TAP did not take. */
SEC("tc")
int host_shortcut(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct attachment *a = bpf_map_lookup_elem(&attachments, &ifindex);
	struct shortcut_settings *s = get_settings();
	enum path_reason r = PATH_PASS_NOT_IP;
	int verdict = TC_ACT_UNSPEC;
	struct way w = {};

	if (!a || !s || !pull_headers(skb))
		return TC_ACT_UNSPEC;
	w.f.data = (void *)(long)skb->data;
	w.f.data_end = (void *)(long)skb->data_end;
	w.f.len = skb->len;
	w.f.gso_size = skb->gso_size;
	if (!skb->vlan_present)
		r = decide(skb, &w, a, ifindex, s, HOOK_HOST_TC, RUNS_GENERIC);
	if (taken(r))
		verdict = tc_send(&w, &r);
	count(&w, a, HOOK_HOST_TC, r);
	trace(&w, s, ifindex, HOOK_HOST_TC, r);
	return verdict;
}
