/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Completes the checksum of a frame in XDP, which loses what the guest said about it. A partial one holds exactly the
 * folded sum of the pseudo header (for ICMP: zero), so completing is right whether or not it was partial: a complete one
 * that happens to look so comes out as it was.
 */
#ifndef TAPIR_SHORTCUT_CHECKSUM_H
#define TAPIR_SHORTCUT_CHECKSUM_H

#include <bpf/bpf_helpers.h>

#include "shortcut_frame.h"

/* What native XDP gets is at most a page. */
#define MAX_L4_LEN 4095

/* bpf_csum_diff() takes no more at once on older kernels. */
#define SUM_STEP 512

static __always_inline __u16 sum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The folded sum of the pseudo header, RFC 9293 3.1 and RFC 8200 8.1. ICMP for IPv4 has none. */
static __always_inline __u16 pseudo_sum(const struct frame *f)
{
	__u64 sum = 0;

	if (f->key.proto == IPPROTO_ICMP && !f->ipv6)
		return 0;
	if (f->ipv6) {
		for (int i = 0; i < 4; i++)
			sum += (__u64)f->key.source.word[i] + f->key.dest.word[i];
	} else {
		sum = (__u64)f->key.source.word[3] + f->key.dest.word[3];
	}
	/* The frame's own source, where the key has another: less the difference. */
	sum += f->translated ? (__u16)~f->source_diff : 0;
	return sum_fold(sum + bpf_htonl(f->l4_len) + bpf_htonl(f->key.proto));
}

/* The checksum's place in the frame. */
static __always_inline __u32 checksum_off(const struct frame *f)
{
	switch (f->key.proto) {
	case IPPROTO_TCP:
		return f->l4_off + __builtin_offsetof(struct tcphdr, check);
	case IPPROTO_UDP:
		return f->l4_off + __builtin_offsetof(struct udphdr, check);
	default:
		return f->l4_off + __builtin_offsetof(struct icmp_echo, checksum);
	}
}

/* Where it is, or NULL where the frame ends before. The pointer is opaque to the compiler, so that it reads what was compared. */
static __always_inline __be16 *checksum_at(const struct frame *f)
{
	__be16 *check = f->data + (checksum_off(f) & 0x7f); /* the mask is for the verifier */

	barrier_var(check);
	return (void *)(check + 1) > f->data_end ? (void *)0 : check;
}

/* Is the checksum partial? One in 65,536 complete ones looks so too. A zero of UDP says that there is none. */
static __always_inline bool checksum_partial(const struct frame *f, __be16 check)
{
	if (check == 0)
		return f->key.proto == IPPROTO_ICMP && !f->ipv6;
	return check == pseudo_sum(f);
}

/*
 * The folded sum over the bytes [off, off + len) of a frame, or -1 where it ends before. Each step's place is reckoned
 * from what is left, and the function is global, so that the verifier follows its steps once and not for each caller's state.
 */
__noinline int sum_bytes(struct xdp_md *ctx, __u32 off, __u32 len)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 end = off + len, left = len;
	__s64 sum = 0;

	if (len > MAX_L4_LEN || off > IPV6_L4_OFF)
		return -1;
	for (int i = 0; i < MAX_L4_LEN / SUM_STEP; i++) {
		void *at = data + ((end - left) & 0x1fff);

		if (left < SUM_STEP)
			break;
		if (at + SUM_STEP > data_end)
			return -1;
		sum = bpf_csum_diff((void *)0, 0, at, SUM_STEP, sum);
		left -= SUM_STEP;
	}
	for (__u32 step = SUM_STEP / 2; step >= 4; step /= 2) {
		void *at = data + ((end - left) & 0x1fff);

		if (!(left & step))
			continue;
		if (at + step > data_end)
			return -1;
		sum = bpf_csum_diff((void *)0, 0, at, step, sum);
		left -= step;
	}
	if (left & 2) {
		void *at = data + ((end - left) & 0x1fff);

		if (at + 2 > data_end)
			return -1;
		sum += *(__u16 *)at;
		left -= 2;
	}
	if (left & 1) {
		void *at = data + ((end - left) & 0x1fff);

		if (at + 1 > data_end)
			return -1;
		sum += bpf_htons((__u16)(*(__u8 *)at << 8));
	}
	return sum_fold(sum);
}

/* Does the checksum cover the addresses? */
static __always_inline bool has_pseudo_header(const struct frame *f)
{
	return f->ipv6 || f->key.proto != IPPROTO_ICMP;
}

/*
 * Completes a partial checksum, of addresses that differ by diff from the frame's; as skb_checksum_help() does, 0 becomes
 * 0xffff where a pseudo header goes with it.
 */
static __always_inline bool complete_checksum(struct xdp_md *ctx, const struct frame *f, __u32 diff, __be16 *to)
{
	int sum = sum_bytes(ctx, f->l4_off, f->l4_len);
	__u16 check;

	if (sum < 0)
		return false;
	check = ~sum_fold((__u64)(__u32)sum + diff);
	if (check == 0 && has_pseudo_header(f))
		check = 0xffff;
	*to = check;
	return true;
}

/* A complete checksum, for addresses that differ by diff. RFC 1624, eqn. 3; a zero of UDP means none, and stays. */
static __always_inline __be16 translated_checksum(const struct frame *f, __be16 check, __u32 diff)
{
	__u16 new = ~sum_fold((__u64)(__u16)~check + diff);

	if (f->key.proto != IPPROTO_UDP)
		return new;
	if (check == 0)
		return 0;
	return new == 0 ? 0xffff : new;
}

#endif
