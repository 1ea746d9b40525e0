// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The programs of the shortcut. They call kfuncs and are relocated against the kernel's BTF, so they are an object of
 * their own beside the redirect programs, which load where none of that is.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "shortcut_maps.h"

char LICENSE[] SEC("license") = "GPL";

SEC("xdp")
int guest_xdp(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("xdp")
int guest_xdp_skb(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("xdp")
int uplink_xdp(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("tc")
int host_shortcut(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_UNSPEC;
}

const struct path_event *unused_event __attribute__((unused));
const enum shortcut_layout *unused_layout __attribute__((unused));
