/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Takes a frame apart, by the first two questions: is it the guest's, and is it plain? It only reads, and what it read is
 * the guest's word until it was compared with the attachment.
 */
#ifndef TAPIR_SHORTCUT_FRAME_H
#define TAPIR_SHORTCUT_FRAME_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

#include "shortcut_source.h"

#define IPV4_FRAGMENT 0x3fff /* of frag_off: offset, or more to come */

#define NEXTHDR_HOP	 0
#define NEXTHDR_ROUTING	 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH	 51
#define NEXTHDR_ICMP	 58
#define NEXTHDR_DEST	 60

#define IPV4_L4_OFF (ETH_HLEN + sizeof(struct iphdr))
#define IPV6_L4_OFF (ETH_HLEN + sizeof(struct ipv6hdr))

/* linux/icmp.h includes libc. An echo message of either family, RFC 792 and RFC 4443. */
#define ICMP_ECHO	    8
#define ICMP_ECHOREPLY	    0
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY   129

/* Errors: destination unreachable, time exceeded, parameter problem; the first of IPv6 to the last, packet too big among them. */
#define ICMP_DEST_UNREACH    3
#define ICMP_TIME_EXCEEDED   11
#define ICMP_PARAMETERPROB   12
#define ICMPV6_DEST_UNREACH  1
#define ICMPV6_PARAMPROB     4

struct icmp_echo {
	__u8 type, code;
	__be16 checksum;
	__be16 id, sequence;
};

/* What a frame must have linear to be taken apart. */
#define FRAME_HEADERS (IPV6_L4_OFF + sizeof(struct tcphdr))

enum echo {
	ECHO_NONE = 0,
	ECHO_REQUEST,
	ECHO_REPLY,
};

/* Of the packet that an ICMP error is about. Its addresses are the frame's own the other way round. */
struct quote {
	__be16 source_port, dest_port;
	__u32 proto;
};

struct frame {
	void *data, *data_end;
	__u32 len;	/* the whole frame's */
	__u32 gso_size; /* of its segments; 0: one frame */
	bool ipv6;
	bool anew; /* it may belong to another flow than those before it under its tuple: a SYN or RST of TCP */
	bool error; /* of ICMP */
	enum echo echo;
	struct quote quote;
	__u32 l4_off;	   /* IPV4_L4_OFF or IPV6_L4_OFF */
	__u32 l4_len;	   /* as the IP header says; the frame is not shorter */
	__u32 headers_len; /* of IP and transport */
	struct flow_key key; /* of addresses outside */
	bool translated;     /* the frame has another source than the key */
	__u32 source_diff;   /* of sums, from the frame's source to the key's */
};

static __always_inline bool tunnel_port(const struct shortcut_settings *s, __be16 port)
{
	for (int i = 0; i < SHORTCUT_TUNNEL_PORTS; i++) {
		if (s->tunnel_ports[i] == 0)
			break;
		if (s->tunnel_ports[i] == port)
			return true;
	}
	return false;
}

static __always_inline enum path_reason parse_tcp(struct frame *f, void *l4)
{
	struct tcphdr *tcp = l4;
	__u32 header;

	if ((void *)(tcp + 1) > f->data_end)
		return PATH_PASS_LENGTH;
	header = tcp->doff * 4;
	if (header < sizeof(*tcp) || header > f->l4_len)
		return PATH_PASS_LENGTH;
	f->headers_len += header;
	f->key.source_port = tcp->source;
	f->key.dest_port = tcp->dest;
	f->anew = tcp->syn || tcp->rst;
	return PATH_UNKNOWN;
}

static __always_inline enum path_reason parse_udp(struct frame *f, void *l4, const struct shortcut_settings *s)
{
	struct udphdr *udp = l4;

	if ((void *)(udp + 1) > f->data_end)
		return PATH_PASS_LENGTH;
	if (bpf_ntohs(udp->len) != f->l4_len || f->l4_len < sizeof(*udp))
		return PATH_PASS_LENGTH;
	f->headers_len += sizeof(*udp);
	f->key.source_port = udp->source;
	f->key.dest_port = udp->dest;
	if (tunnel_port(s, udp->source) || tunnel_port(s, udp->dest))
		return PATH_PASS_TUNNEL;
	return PATH_UNKNOWN;
}

static __always_inline bool is_error(const struct frame *f, __u8 type)
{
	if (f->ipv6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* The first 8 bytes behind the quoted IP header; NULL where the packet is not one that the frame's target sent to its source. */
static __always_inline void *quoted(struct frame *f, void *from)
{
	if (f->ipv6) {
		struct ipv6hdr *ip6 = from;

		if ((void *)(ip6 + 1) > f->data_end ||
		    !same_ipv6((struct ipv6_addr *)&ip6->saddr, &f->key.dest) ||
		    !same_ipv6((struct ipv6_addr *)&ip6->daddr, &f->key.source))
			return (void *)0;
		f->quote.proto = ip6->nexthdr;
		return ip6 + 1;
	}
	struct iphdr *ip = from;

	if ((void *)(ip + 1) > f->data_end || ip->ihl != 5 || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)) ||
	    ip->saddr != f->key.dest.word[3] || ip->daddr != f->key.source.word[3])
		return (void *)0;
	f->quote.proto = ip->protocol;
	return ip + 1;
}

/*
 * An error with a packet of a flow, RFC 792 and RFC 4443. Who sends it must be who the packet was for: what a router in
 * between has to say passes.
 */
static __always_inline enum path_reason parse_error(struct frame *f, struct icmp_echo *icmp, __u8 request)
{
	struct icmp_echo *echo = quoted(f, icmp + 1); /* or the ports */
	__be16 *ports = (__be16 *)echo;

	if (!echo || (void *)(echo + 1) > f->data_end)
		return PATH_PASS_PROTOCOL;
	if (f->quote.proto == f->key.proto) {
		if (echo->type != request)
			return PATH_PASS_PROTOCOL;
		f->quote.source_port = echo->id;
	} else {
		f->quote.source_port = ports[0];
		f->quote.dest_port = ports[1];
	}
	f->headers_len += sizeof(*icmp);
	f->error = true;
	return PATH_UNKNOWN;
}

static __always_inline enum path_reason parse_icmp(struct frame *f, void *l4, __u8 request, __u8 reply)
{
	struct icmp_echo *icmp = l4;

	if ((void *)(icmp + 1) > f->data_end || f->l4_len < sizeof(*icmp))
		return PATH_PASS_LENGTH;
	if (is_error(f, icmp->type))
		return f->translated ? PATH_PASS_TRANSLATED : parse_error(f, icmp, request);
	if (icmp->code != 0 || (icmp->type != request && icmp->type != reply))
		return PATH_PASS_PROTOCOL;
	f->headers_len += sizeof(*icmp);
	f->echo = icmp->type == request ? ECHO_REQUEST : ECHO_REPLY;
	f->key.source_port = icmp->id;
	return PATH_UNKNOWN;
}

/* The guest speaks from its inside address: the key has the pod's. */
static __always_inline enum path_reason from_inside(struct frame *f, __u32 diff)
{
	f->translated = true;
	f->source_diff = diff;
	return PATH_UNKNOWN;
}

static __always_inline enum path_reason check_inside_ipv4(struct frame *f, const struct attachment *a, __be32 source)
{
	if (source == a->inside4.word[3]) {
		f->key.source.word[3] = a->ipv4[0];
		return from_inside(f, a->diff4);
	}
	return (a->flags & ATTACHMENT_SPOOF_CHECK) && source != 0 ? PATH_DROP_SPOOF_IPV4 : PATH_PASS_SOURCE;
}

static __always_inline enum path_reason check_inside_ipv6(struct frame *f, const struct attachment *a)
{
	if (same_ipv6(&f->key.source, &a->inside6)) {
		f->key.source = a->ipv6[0];
		return from_inside(f, a->diff6);
	}
	return (a->flags & ATTACHMENT_SPOOF_CHECK) && !maybe_own_ipv6(&f->key.source) ? PATH_DROP_SPOOF_IPV6 :
										       PATH_PASS_SOURCE;
}

/* Returns PATH_UNKNOWN for a plain packet of the guest's. */
static __always_inline enum path_reason parse_ipv4(struct frame *f, const struct attachment *a,
						   const struct shortcut_settings *s, enum path_hook hook)
{
	struct iphdr *ip = f->data + ETH_HLEN;
	enum path_reason r;
	__u32 len;

	if ((void *)(ip + 1) > f->data_end || ip->version != 4 || ip->ihl < 5)
		return PATH_PASS_LENGTH;
	map_ipv4(&f->key.source, ip->saddr);
	map_ipv4(&f->key.dest, ip->daddr);
	f->key.proto = ip->protocol;
	if (hook == HOOK_TAP_XDP && (a->flags & ATTACHMENT_TRANSLATE4))
		r = check_inside_ipv4(f, a, ip->saddr);
	else
		r = check_source_ipv4(a, ip->saddr, hook);
	if (r != PATH_UNKNOWN)
		return r;
	if (!same_mac(((struct ethhdr *)f->data)->h_dest, a->gateway_mac))
		return PATH_PASS_NOT_GATEWAY;
	if (ip->ihl != 5)
		return PATH_PASS_OPTIONS;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return PATH_PASS_FRAGMENT;
	len = bpf_ntohs(ip->tot_len);
	if (len < sizeof(*ip) || len > f->len - ETH_HLEN)
		return PATH_PASS_LENGTH;
	f->l4_off = IPV4_L4_OFF;
	f->l4_len = len - sizeof(*ip);
	f->headers_len = sizeof(*ip);
	switch (ip->protocol) {
	case IPPROTO_TCP:
		r = parse_tcp(f, ip + 1);
		break;
	case IPPROTO_UDP:
		r = parse_udp(f, ip + 1, s);
		break;
	case IPPROTO_ICMP:
		r = parse_icmp(f, ip + 1, ICMP_ECHO, ICMP_ECHOREPLY);
		break;
	default:
		r = PATH_PASS_PROTOCOL;
	}
	if (r == PATH_UNKNOWN && ip->ttl <= 1)
		return PATH_PASS_TTL;
	return r;
}

/* Returns PATH_UNKNOWN for a plain packet of the guest's. */
static __always_inline enum path_reason parse_ipv6(struct frame *f, const struct attachment *a,
						   const struct shortcut_settings *s, enum path_hook hook)
{
	struct ipv6hdr *ip6 = f->data + ETH_HLEN;
	enum path_reason r;

	if ((void *)(ip6 + 1) > f->data_end || ip6->version != 6)
		return PATH_PASS_LENGTH;
	f->ipv6 = true;
	__builtin_memcpy(&f->key.source, &ip6->saddr, sizeof(f->key.source));
	__builtin_memcpy(&f->key.dest, &ip6->daddr, sizeof(f->key.dest));
	f->key.proto = ip6->nexthdr;
	if (hook == HOOK_TAP_XDP && (a->flags & ATTACHMENT_TRANSLATE6))
		r = check_inside_ipv6(f, a);
	else
		r = check_source_ipv6(a, &f->key.source, hook);
	if (r != PATH_UNKNOWN)
		return r;
	if (!same_mac(((struct ethhdr *)f->data)->h_dest, a->gateway_mac))
		return PATH_PASS_NOT_GATEWAY;
	f->l4_off = IPV6_L4_OFF;
	f->l4_len = bpf_ntohs(ip6->payload_len);
	f->headers_len = sizeof(*ip6);
	if (f->l4_len > f->len - IPV6_L4_OFF)
		return PATH_PASS_LENGTH;
	switch (ip6->nexthdr) {
	case IPPROTO_TCP:
		r = parse_tcp(f, ip6 + 1);
		break;
	case IPPROTO_UDP:
		r = parse_udp(f, ip6 + 1, s);
		break;
	case NEXTHDR_ICMP:
		r = parse_icmp(f, ip6 + 1, ICMPV6_ECHO_REQUEST, ICMPV6_ECHO_REPLY);
		break;
	case NEXTHDR_FRAGMENT:
		r = PATH_PASS_FRAGMENT;
		break;
	case NEXTHDR_HOP:
	case NEXTHDR_ROUTING:
	case NEXTHDR_AUTH:
	case NEXTHDR_DEST:
		r = PATH_PASS_EXT_HEADERS;
		break;
	default:
		r = PATH_PASS_PROTOCOL;
	}
	if (r == PATH_UNKNOWN && ip6->hop_limit <= 1)
		return PATH_PASS_TTL;
	return r;
}

/* Returns PATH_UNKNOWN for a plain frame of the guest's; on the uplink, to the uplink's MAC. */
static __always_inline enum path_reason parse(struct frame *f, const struct attachment *a,
					      const struct shortcut_settings *s, enum path_hook hook)
{
	struct ethhdr *eth = f->data;

	if ((void *)(eth + 1) > f->data_end)
		return PATH_PASS_LENGTH;
	if (hook == HOOK_TAP_XDP && (a->flags & ATTACHMENT_SPOOF_CHECK) && !same_mac(eth->h_source, a->guest_mac))
		return PATH_DROP_SPOOF_MAC;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return parse_ipv4(f, a, s, hook);
	case bpf_htons(ETH_P_IPV6):
		return parse_ipv6(f, a, s, hook);
	default:
		return PATH_PASS_NOT_IP;
	}
}

#endif
