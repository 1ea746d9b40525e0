/*
 * IPv6 and Neighbour Discovery from a guest.
 */
#ifndef TAPIR_IPV6_H
#define TAPIR_IPV6_H

#include <linux/in.h>

#include "address.h"
#include "checksum.h"

#define IPV6_HDR_END (sizeof(struct ethhdr) + sizeof(struct ipv6hdr))

#define MAX_EXT_HEADERS 8
#define MAX_ND_OPTIONS	8

#define NEXTHDR_HOP	 0
#define NEXTHDR_ROUTING	 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH	 51
#define NEXTHDR_ICMP	 58
#define NEXTHDR_DEST	 60

#define DHCP6_SERVER 547
#define DHCP6_CLIENT 546

#define FRAGMENT_OFFSET 0xfff8 /* of the fragment header's third and fourth byte */

#define MLD_REPORT	      131
#define MLD_DONE	      132
#define ND_ROUTER_SOLICIT     133
#define ND_ROUTER_ADVERT      134
#define ND_NEIGHBOUR_SOLICIT  135
#define ND_NEIGHBOUR_ADVERT   136
#define ND_REDIRECT	      137
#define MLD2_REPORT	      143

#define ND_OPT_SOURCE_LLADDR 1
#define ND_OPT_TARGET_LLADDR 2

/* Bytes from the ICMPv6 header to the options. */
#define ND_ROUTER_SOLICIT_LEN 8
#define ND_NEIGHBOUR_LEN      24

/* What stands behind the extension headers. */
struct upper {
	__u32 off; /* in the frame */
	__u8 proto;
	bool fragment; /* of a fragmented packet */
	bool later;    /* not its first fragment: there is no upper header here */
	bool auth;     /* behind an authentication header */
	__u32 routing_off; /* of the last routing header; 0: none */
};

/* Steps over one extension header. Returns 1: done, at the upper header; 0: go on; -1: the frame ends. */
static __always_inline int skip_ext_header(const struct packet *p, struct upper *u)
{
	__be16 fragment[2];
	__u8 head[2]; /* next header, length */

	switch (u->proto) {
	case NEXTHDR_ROUTING:
		u->routing_off = u->off;
		/* fallthrough */
	case NEXTHDR_HOP:
	case NEXTHDR_DEST:
		if (packet_load(p, u->off, head, sizeof(head)))
			return -1;
		u->off += (head[1] + 1) * 8;
		break;
	case NEXTHDR_AUTH:
		if (packet_load(p, u->off, head, sizeof(head)))
			return -1;
		u->off += (head[1] + 2) * 4;
		u->auth = true;
		break;
	case NEXTHDR_FRAGMENT:
		if (packet_load(p, u->off, head, sizeof(head)) || packet_load(p, u->off, fragment, sizeof(fragment)))
			return -1;
		u->off += 8;
		u->fragment = true;
		u->later = fragment[1] & bpf_htons(FRAGMENT_OFFSET);
		break;
	default:
		return 1;
	}
	u->proto = head[0];
	return u->later;
}

/*
 * Finds the upper header. The first fragment holds the whole chain (RFC 7112), a later one none of it.
 * Returns REASON_UNKNOWN where it was found.
 */
static __always_inline enum reason find_upper(const struct packet *p, struct upper *u)
{
	for (int i = 0; i <= MAX_EXT_HEADERS; i++) {
		int done = skip_ext_header(p, u);

		if (done < 0)
			return REASON_TRUNCATED;
		if (done)
			return REASON_UNKNOWN;
	}
	return REASON_EXT_HEADERS;
}

/* What a node may send before it has an address: DAD, RS and MLD (RFC 4862, RFC 4861, RFC 3810 5.2.13). */
static __always_inline bool may_be_unspecified(const struct upper *u, __u8 type)
{
	return u->proto == NEXTHDR_ICMP && !u->fragment &&
	       (type == ND_NEIGHBOUR_SOLICIT || type == ND_ROUTER_SOLICIT || type == MLD_REPORT || type == MLD_DONE ||
		type == MLD2_REPORT);
}

/* Each link-layer address in the options [off, end) must be the guest's. */
static __always_inline enum reason check_nd_options(const struct packet *p, const struct endpoint *ep, __u32 off,
						    __u32 end)
{
	struct {
		__u8 type, len;
		__u8 mac[ETH_ALEN];
	} __attribute__((aligned(2))) opt;

	for (int i = 0; i < MAX_ND_OPTIONS; i++) {
		if (off == end)
			return REASON_TO_HOST;
		if (off + sizeof(opt) > end || packet_load(p, off, &opt, sizeof(opt)) || opt.len == 0)
			return REASON_SPOOF_ND;
		if ((opt.type == ND_OPT_SOURCE_LLADDR || opt.type == ND_OPT_TARGET_LLADDR) &&
		    (opt.len != 1 || !mac_equal(opt.mac, ep->guest_mac)))
			return REASON_SPOOF_ND;
		off += opt.len * 8;
	}
	return off == end ? REASON_TO_HOST : REASON_SPOOF_ND;
}

/* A solicitation or a Neighbour Advertisement; end is where the IPv6 payload ends in the frame. */
static __always_inline enum reason check_nd(const struct packet *p, const struct endpoint *ep, const struct upper *u,
					    __u8 type, __u32 end)
{
	__u32 fixed = type == ND_ROUTER_SOLICIT ? ND_ROUTER_SOLICIT_LEN : ND_NEIGHBOUR_LEN;
	struct ipv6_addr target;

	if (u->fragment)
		return REASON_FRAGMENTED_ND;
	if (u->off + fixed > end || end > packet_len(p))
		return REASON_TRUNCATED;
	if (type == ND_NEIGHBOUR_ADVERT) {
		if (packet_load(p, u->off + 8, &target, sizeof(target)))
			return REASON_TRUNCATED;
		if (!guest_has_ipv6(ep, &target) && !ipv6_link_local(&target))
			return REASON_SPOOF_ND;
	}
	return check_nd_options(p, ep, u->off + fixed, end);
}

/*
 * Is this a Neighbour Solicitation that the gateway answers? It must be valid by RFC 4861, 7.1.1, and stand right
 * behind the IPv6 header; any other is left to the host's stack.
 */
static __always_inline bool solicits_gateway(struct packet *p, const struct endpoint *ep, const struct ipv6hdr *ip6)
{
	const struct ipv6_addr *source = (const struct ipv6_addr *)&ip6->saddr;
	const struct ipv6_addr *dest = (const struct ipv6_addr *)&ip6->daddr;
	struct icmpv6_sum sum;

	if (!packet_answerable(p) || !packet_for_gateway(p, ep) || ip6->hop_limit != 255)
		return false;
	if (packet_load(p, IPV6_HDR_END + 8, &p->nd.target, sizeof(p->nd.target)))
		return false;
	if (!ipv6_solicited_node(dest, &p->nd.target) &&
	    (!ipv6_equal(dest, &p->nd.target) || ipv6_unspecified(source)))
		return false;
	if (ipv6_multicast(source) || !gateway_answers_ipv6(ep, &p->nd.target))
		return false;
	if (!icmpv6_sum_load(&sum, p, IPV6_HDR_END, ip6) || sum.message.code != 0)
		return false;
	p->nd.source = *source;
	switch (icmpv6_sum_verify(&sum)) {
	case CHECKSUM_COMPLETE:
		p->nd.partial_checksum = false;
		return true;
	case CHECKSUM_PARTIAL:
		p->nd.partial_checksum = true;
		return true;
	default:
		return false;
	}
}

static __always_inline enum reason decide_icmpv6(struct packet *p, const struct endpoint *ep,
						 const struct ipv6hdr *ip6, const struct upper *u, __u8 type,
						 bool strict)
{
	enum reason r;
	bool checked = false;

	switch (type) {
	case ND_ROUTER_ADVERT:
		return REASON_ROGUE_RA;
	case ND_REDIRECT:
		return REASON_ROGUE_REDIRECT;
	case ND_ROUTER_SOLICIT:
	case ND_NEIGHBOUR_SOLICIT:
	case ND_NEIGHBOUR_ADVERT:
		if (!strict)
			break;
		r = check_nd(p, ep, u, type, IPV6_HDR_END + bpf_ntohs(ip6->payload_len));
		if (r != REASON_TO_HOST)
			return r;
		checked = true;
	}
	if (type == ND_ROUTER_SOLICIT && !u->fragment) {
		p->question = QUESTION_RS;
		p->question_off = u->off;
	}
	if (type == ND_NEIGHBOUR_SOLICIT && u->off == IPV6_HDR_END && solicits_gateway(p, ep, ip6))
		return REASON_ND_ANSWERED;
	/*
	 * Each link-local address that solicits costs the node an entry of a neighbour table that all of it shares, and a
	 * guest has 2^64 of them. Nobody there needs these: neighbour entries of guests are permanent, and no host end
	 * advertises a router. Behind another plugin's interface somebody may.
	 */
	if (checked && ep->redirect != REDIRECT_EGRESS && ipv6_link_local((const struct ipv6_addr *)&ip6->saddr))
		return REASON_ND_LINK_LOCAL;
	return REASON_TO_HOST;
}

/* As decide_udp4(). DHCPv6 is spoken from link-local addresses, which anybody may have. */
static __always_inline enum reason decide_udp6(struct packet *p, const struct upper *u)
{
	__be16 ports[2];

	if (packet_load(p, u->off, ports, sizeof(ports)))
		return REASON_TO_HOST;
	if (ports[0] == bpf_htons(DHCP6_SERVER) && ports[1] == bpf_htons(DHCP6_CLIENT))
		return REASON_ROGUE_DHCP;
	if (ports[1] == bpf_htons(DHCP6_SERVER) && !u->fragment) {
		p->question = QUESTION_DHCP6;
		p->question_off = u->off;
	}
	return REASON_TO_HOST;
}

static __always_inline enum reason decide_ipv6(struct packet *p, const struct endpoint *ep, bool strict)
{
	const struct ipv6hdr *ip6 = &p->ip6;
	const struct ipv6_addr *source = (const struct ipv6_addr *)&p->ip6.saddr;
	struct upper u = {};
	__u8 type = 0;
	enum reason r;

	if (packet_load(p, sizeof(p->eth), &p->ip6, sizeof(p->ip6)))
		return strict ? REASON_TRUNCATED : REASON_TO_HOST;
	if (ip6->version != 6)
		return strict ? REASON_MALFORMED : REASON_TO_HOST;

	u.off = IPV6_HDR_END;
	u.proto = ip6->nexthdr;
	r = find_upper(p, &u);
	if (r == REASON_UNKNOWN && u.proto == NEXTHDR_ICMP && !u.later && packet_load(p, u.off, &type, sizeof(type)))
		r = REASON_TRUNCATED;
	if (r == REASON_TRUNCATED)
		return strict ? r : REASON_TO_HOST;
	if (r != REASON_UNKNOWN)
		return r;

	if (strict && !guest_has_ipv6(ep, source) && !ipv6_link_local(source) &&
	    !(ipv6_unspecified(source) && may_be_unspecified(&u, type)))
		return REASON_SPOOF_IPV6;
	if (u.proto == NEXTHDR_ICMP && !u.later)
		return decide_icmpv6(p, ep, ip6, &u, type, strict);
	if (u.proto == IPPROTO_UDP && !u.later && (ep->flags & (ENDPOINT_SPOOF_CHECK | ENDPOINT_ANSWERS)))
		return decide_udp6(p, &u);
	return REASON_TO_HOST;
}

#endif
