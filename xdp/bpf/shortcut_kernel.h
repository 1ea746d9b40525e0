/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The kernel's structures, cut down to the fields that are read, and its functions that are called. Places of fields are found
 * when the programs are loaded, by the kernel's own BTF (CO-RE), so neither order nor size matters here, only names.
 */
#ifndef TAPIR_SHORTCUT_KERNEL_H
#define TAPIR_SHORTCUT_KERNEL_H

#include <stdbool.h>

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netdev_rx_queue {
	unsigned int rps_flow_hash; /* never read: only the structure's size matters */
};

struct net_device {
	struct netdev_rx_queue *_rx;
	unsigned int num_rx_queues;
};

struct xdp_rxq_info {
	struct net_device *dev;
};

struct xdp_buff {
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
	__u32 frame_sz;
};

struct skb_shared_info {
	unsigned short gso_size;
};

struct nf_conn {
	unsigned long status;
};

#pragma clang attribute pop

/* The kernel's struct bpf_ct_opts as it was before 6.11, a size that newer kernels take too. */
struct bpf_ct_opts___tapir {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, __u32 tuple__sz,
					 struct bpf_ct_opts___tapir *opts, __u32 opts__sz) __ksym;
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple__sz,
					 struct bpf_ct_opts___tapir *opts, __u32 opts__sz) __ksym;
extern void bpf_ct_release(struct nf_conn *ct) __ksym;

/* Tests run programs by BPF_PROG_TEST_RUN, whose receive queue looks like a generic run's. */
const volatile bool test_native;

/*
 * Is this the generic run, on an skb? Its receive queue is one of dev->_rx[] (net/core/dev.c, netif_get_rxqueue()); a
 * native run's is the driver's own.
 */
static __always_inline bool generic_run(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);
	struct xdp_rxq_info *rxq = xdp->rxq;
	struct net_device *dev = rxq->dev;
	__u64 first = (__u64)dev->_rx;
	__u64 size = (__u64)dev->num_rx_queues * bpf_core_type_size(struct netdev_rx_queue);

	return !test_native && (__u64)rxq - first < size;
}

/* The kernel's SKB_DATA_ALIGN() with the cache lines of x86-64 and arm64. */
#define SKB_ALIGN(x) (((x) + 63) & ~63u)

/*
 * In the generic run: the size of the skb's segments, 0 for a single frame. The skb_shared_info is where
 * bpf_prog_run_generic_xdp() says that the frame ends.
 */
static __always_inline __u32 generic_gso_size(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);
	__u64 end = (__u64)xdp->data_hard_start + xdp->frame_sz;
	struct skb_shared_info *info;

	end -= SKB_ALIGN(bpf_core_type_size(struct skb_shared_info));
	info = bpf_rdonly_cast((void *)end, bpf_core_type_id_kernel(struct skb_shared_info));
	return info->gso_size;
}

#endif
