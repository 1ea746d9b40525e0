/*
 * IPv4 and ARP from a guest.
 */
#ifndef TAPIR_IPV4_H
#define TAPIR_IPV4_H

#include <linux/in.h>
#include <linux/ip.h>

#include "address.h"

#define ARPHRD_ETHER   1
#define ARPOP_REQUEST  1
#define ARPOP_REPLY    2
#define IPV4_OFFSET    0x1fff /* of frag_off */
#define IPV4_FRAGMENT  0x3fff /* of frag_off: offset, or more to come */
#define DHCP_SERVER    67
#define DHCP_CLIENT    68

/*
 * UDP that is not a later fragment: no guest is a DHCP server, and what asks one is for the answerer. A client without an
 * address speaks from 0.0.0.0 (RFC 2131, 4.1), in one piece, and that is all that may be said from there.
 */
static __always_inline enum reason decide_udp4(struct packet *p, const struct ipv4_start *start, bool strict)
{
	const struct iphdr *ip = &start->ip;
	__u32 off = sizeof(p->eth) + ip->ihl * 4;
	__be16 ports[2] = { start->ports[0], start->ports[1] };

	if (ip->ihl != 5 && packet_load(p, off, ports, sizeof(ports)))
		return strict && ip->saddr == 0 ? REASON_TRUNCATED : REASON_TO_HOST;
	if (ports[0] == bpf_htons(DHCP_SERVER) && ports[1] == bpf_htons(DHCP_CLIENT))
		return REASON_ROGUE_DHCP;
	if (strict && ip->saddr == 0 && (ports[0] != bpf_htons(DHCP_CLIENT) || ports[1] != bpf_htons(DHCP_SERVER)))
		return REASON_SPOOF_IPV4;
	if (ports[1] == bpf_htons(DHCP_SERVER) && !(ip->frag_off & bpf_htons(IPV4_FRAGMENT))) {
		p->question = QUESTION_DHCP;
		p->question_off = off;
	}
	return REASON_TO_HOST;
}

/* The source stands in each fragment, and is checked in each. */
static __always_inline enum reason decide_ipv4(struct packet *p, const struct endpoint *ep, bool strict)
{
	const struct iphdr *ip = &p->ip4.ip;
	bool whole = !packet_load(p, sizeof(p->eth), &p->ip4, sizeof(p->ip4));

	if (!whole && packet_load(p, sizeof(p->eth), &p->ip4.ip, sizeof(p->ip4.ip)))
		return strict ? REASON_TRUNCATED : REASON_TO_HOST;
	if (ip->version != 4 || ip->ihl < 5)
		return strict ? REASON_MALFORMED : REASON_TO_HOST;
	if (strict && ip->saddr == 0) {
		if (ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
			return REASON_SPOOF_IPV4;
		if (!whole)
			return REASON_TRUNCATED;
	} else if (strict && !guest_has_ipv4(ep, ip->saddr)) {
		return REASON_SPOOF_IPV4;
	}
	if (!whole || ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(IPV4_OFFSET)))
		return REASON_TO_HOST;
	return decide_udp4(p, &p->ip4, strict);
}

static __always_inline enum reason decide_arp(struct packet *p, const struct endpoint *ep, bool strict)
{
	struct arp_ipv4 *arp = &p->arp;

	if (packet_load(p, sizeof(p->eth), arp, sizeof(*arp)))
		return strict ? REASON_TRUNCATED : REASON_TO_HOST;
	if (arp->hardware != bpf_htons(ARPHRD_ETHER) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->hardware_len != ETH_ALEN || arp->protocol_len != sizeof(__be32))
		return strict ? REASON_SPOOF_ARP : REASON_TO_HOST;
	/* The sender may be 0.0.0.0: a probe, RFC 5227. */
	if (strict && (!mac_equal(arp->sender_mac, ep->guest_mac) ||
		       (arp->sender_ip != 0 && !guest_has_ipv4(ep, arp->sender_ip))))
		return REASON_SPOOF_ARP;
	if (arp->operation == bpf_htons(ARPOP_REQUEST) && packet_answerable(p) && packet_for_gateway(p, ep) &&
	    gateway_answers_ipv4(ep, arp->target_ip))
		return REASON_ARP_ANSWERED;
	return REASON_TO_HOST;
}

#endif
