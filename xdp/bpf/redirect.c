/*
 * The redirect programs of tapir, for tcx and for clsact. They use helpers of kernel 5.10 and nothing that must be
 * relocated, so one object loads on all kernels that tapir supports.
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "translate.h"

char LICENSE[] SEC("license") = "Apache-2.0";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAPIR_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAPIR_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

/* Filled by who loads the answerer, an object of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, NR_ANSWERERS);
	__type(key, __u32);
	__type(value, __u32);
} answerers SEC(".maps");

static __always_inline struct endpoint *find_endpoint(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	return bpf_map_lookup_elem(&endpoints, &ifindex);
}

/* What is not reserved in map counters is not counted. */
static __always_inline void count(const struct endpoint *ep, enum reason r, __u32 len)
{
	__u32 key = ep->counters;
	struct counts *c = bpf_map_lookup_elem(&counters, &key);

	if (!c || (__u32)r >= REASON_MAX)
		return;
	c->by_reason[r].frames++;
	c->by_reason[r].bytes += len;
}

/* Decides, and writes the answer where one is due. */
static __always_inline enum reason decide_and_answer(struct packet *p, const struct endpoint *ep)
{
	enum reason r = decide(p, ep);

	if (r == REASON_ARP_ANSWERED)
		return answer_arp(p, ep);
	if (r == REASON_ND_ANSWERED)
		return answer_nd(p, ep);
	return r;
}

/* Does not come back where there is an answerer for a question that decide() found. */
static __always_inline void ask_answerer(struct packet *p, const struct endpoint *ep, enum reason r)
{
	if (p->question == QUESTION_NONE || !(ep->flags & ENDPOINT_ANSWERS))
		return;
	if (r != REASON_TO_HOST && r != REASON_ND_LINK_LOCAL)
		return;
	p->skb->cb[0] = p->question;
	p->skb->cb[1] = p->question_off;
	p->skb->cb[2] = ep->counters;
	bpf_tail_call(p->skb, &answerers, ANSWERER);
	p->skb->cb[0] = QUESTION_NONE;
	p->skb->cb[1] = 0;
	p->skb->cb[2] = 0;
}

/*
 * bpf_redirect_peer() goes straight into the receive path, past eth_type_trans(): the packet type still says what the
 * frame was to the TAP, or, where the kernel scrubs it, that any frame is the host's. So only a frame to the gateway's MAC
 * goes that way, as the host's; broadcast and multicast must stay such, and another MAC nobody's.
 */
static __always_inline int redirect(struct packet *p, const struct endpoint *ep)
{
	if (ep->redirect != REDIRECT_PEER || !mac_equal(p->eth.h_dest, ep->gateway_mac))
		return bpf_redirect(ep->peer, 0);
	if (p->skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(p->skb, PACKET_HOST);
	return bpf_redirect_peer(ep->peer, 0);
}

static __always_inline bool translated(const struct endpoint *ep)
{
	return ep->flags & (ENDPOINT_TRANSLATE4 | ENDPOINT_TRANSLATE6);
}

static __always_inline bool has_peer(const struct endpoint *ep)
{
	return ep->peer != 0 && ep->redirect != REDIRECT_NONE;
}

/* On the TAP: what the guest sends. */
SEC("tc")
int guest_ingress(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb };
	struct endpoint *ep = find_endpoint(skb);
	__u32 len = skb->len;
	enum reason r;

	if (!ep)
		return TC_ACT_UNSPEC;
	r = decide_and_answer(&p, ep);
	ask_answerer(&p, ep, r);
	if (r == REASON_TO_HOST && !has_peer(ep))
		r = REASON_NO_PEER;
	if (r == REASON_TO_HOST && translated(ep)) {
		enum reason not = to_outside(&p, ep);

		if (not != REASON_UNKNOWN)
			r = not;
	}
	count(ep, r, len);

	switch (r) {
	case REASON_TO_HOST:
		return redirect(&p, ep);
	case REASON_ARP_ANSWERED:
	case REASON_ND_ANSWERED:
		return bpf_redirect(skb->ifindex, 0);
	default:
		return TC_ACT_SHOT;
	}
}

/* On the veth's pod end beside a TAP: what is sent to the guest. */
SEC("tc")
int pod_ingress(struct __sk_buff *skb)
{
	struct endpoint *ep = find_endpoint(skb);
	enum reason r;

	if (!ep)
		return TC_ACT_UNSPEC;
	r = has_peer(ep) ? REASON_TO_GUEST : REASON_NO_PEER;
	if (r == REASON_TO_GUEST && translated(ep)) {
		struct packet p = { .skb = skb };
		enum reason not = to_inside(&p, ep);

		if (not != REASON_UNKNOWN)
			r = not;
	}
	count(ep, r, skb->len);
	return r == REASON_TO_GUEST ? bpf_redirect(ep->peer, 0) : TC_ACT_SHOT;
}

/* On the veth's host end of a pod without a TAP: what the pod sends. */
SEC("tc")
int host_ingress(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb };
	struct endpoint *ep = find_endpoint(skb);
	__u32 len = skb->len;
	enum reason r;

	if (!ep)
		return TC_ACT_UNSPEC;
	r = decide_and_answer(&p, ep);
	ask_answerer(&p, ep, r);
	count(ep, r, len);

	switch (r) {
	case REASON_TO_HOST:
		return TC_ACT_UNSPEC;
	case REASON_ARP_ANSWERED:
	case REASON_ND_ANSWERED:
		return bpf_redirect(skb->ifindex, 0);
	default:
		return TC_ACT_SHOT;
	}
}
