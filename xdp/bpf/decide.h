/*
 * The one decision about a frame that a guest sent. It only reads: who calls it counts the reason, and acts on it.
 */
#ifndef TAPIR_DECIDE_H
#define TAPIR_DECIDE_H

#include "ipv4.h"
#include "ipv6.h"

/*
 * Returns REASON_TO_HOST for a legal frame, REASON_ARP_ANSWERED or REASON_ND_ANSWERED for a question that the caller
 * shall answer with what p holds now, else why the frame is dropped. An ethertype other than IPv4, ARP and IPv6 passes
 * on its source MAC alone.
 */
static __noinline enum reason decide(struct packet *p, const struct endpoint *ep)
{
	bool strict = ep->flags & ENDPOINT_SPOOF_CHECK;

	if (packet_load(p, 0, &p->eth, sizeof(p->eth)))
		return REASON_TRUNCATED;
	if (strict && !mac_equal(p->eth.h_source, ep->guest_mac))
		return REASON_SPOOF_MAC;
	/* VLAN 0 is a priority: the host would take what is behind its tag as untagged. */
	if (strict && packet_tagged(p))
		return REASON_VLAN;

	switch (p->eth.h_proto) {
	case bpf_htons(ETH_P_IP):
		/* Of an endpoint without any of these nothing is refused, asked or translated. */
		if (!(ep->flags & (ENDPOINT_SPOOF_CHECK | ENDPOINT_ANSWERS | ENDPOINT_TRANSLATE4)))
			return REASON_TO_HOST;
		return decide_ipv4(p, ep, strict);
	case bpf_htons(ETH_P_ARP):
		return decide_arp(p, ep, strict);
	case bpf_htons(ETH_P_IPV6):
		return decide_ipv6(p, ep, strict);
	default:
		return REASON_TO_HOST;
	}
}

#endif
