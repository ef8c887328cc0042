// Where packets go: into an instance, out by an uplink, to this machine's own network, or nowhere.
#pragma once
#include "pick.h"

INLINE int drop(struct counts *c, __u32 reason)
{
    c->drops[reason & (REASONS - 1)]++;
    return TC_ACT_SHOT;
}

INLINE int spoofed(struct counts *c, struct slot_counts *sc)
{
    sc->spoofed++;
    return drop(c, DROPPED_SPOOFED);
}

INLINE void count_received(struct counts *c, __u32 uplink, __u32 bytes)
{
    struct uplink_counts *uc = &c->uplinks[uplink & (UPLINKS - 1)];
    uc->received_packets++;
    uc->received_bytes += bytes;
}

// A packet of a service that no instance gets.
INLINE int lost(struct counts *c, __u32 uplink, __u32 bytes, __u32 reason)
{
    count_received(c, uplink, bytes);
    return drop(c, reason);
}

// The neighbour that a packet came from, and by which uplink.
INLINE __u64 outside_of(struct __sk_buff *skb, __u32 uplink)
{
    struct eth *eth = (void *)(long)skb->data;
    __u64 outside = 0;
    if ((void *)(eth + 1) > (void *)(long)skb->data_end)
        return 0;
    COPY(&outside, eth->src, 6);
    return outside | (__u64)uplink << 48;
}

INLINE int set_macs(struct __sk_buff *skb, const __u8 *dst, const __u8 *src)
{
    struct eth *eth = (void *)(long)skb->data;
    if ((void *)(eth + 1) > (void *)(long)skb->data_end)
        return 0;
    COPY(eth->dst, dst, 6);
    COPY(eth->src, src, 6);
    return 1;
}

// Into the tunnel of a slot, which is the rest of the number. The entrance does that: here it would be one call more on a stack
// that has 512 bytes for all of them.
enum { TO_TUNNEL = 1 << 16 };

// Into the instance, as if its interface had received the packet; where others run it, on the way that routes say, or into
// the tunnel to its machine.
INLINE int deliver(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot, __u32 service, __u32 uplink,
                   __u32 bytes)
{
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    struct service_counts *vc = &c->services[service & (SERVICES - 1)];
    struct slot_counts *sc = &c->slots[slot & (SLOTS - 1)];

    count_received(c, uplink, bytes);
    vc->offered_packets++;
    vc->offered_bytes += bytes;
    if (UNLIKELY(row->flags & SLOT_TUNNEL))
        return TO_TUNNEL | (slot & (SLOTS - 1));
    if (UNLIKELY(skb->vlan_present) && bpf_skb_vlan_pop(skb))
        return drop(c, DROPPED_LOST);
    if (UNLIKELY(row->flags & SLOT_ROUTED)) {
        if (!row->ifindex)
            return drop(c, DROPPED_LOST);
        sc->to_packets++;
        sc->to_bytes += bytes;
        return bpf_redirect_neigh(row->ifindex, 0, 0, 0);
    }
    if (!row->ifindex || !set_macs(skb, row->mac, w->settings.gateway_mac))
        return drop(c, DROPPED_LOST);
    if (UNLIKELY(skb->pkt_type != PACKET_HOST))
        bpf_skb_change_type(skb, PACKET_HOST);
    sc->to_packets++;
    sc->to_bytes += bytes;
    return bpf_redirect_peer(row->ifindex, 0);
}

// Out by the uplink of the flow. Where the neighbour is not known yet, the kernel looks it up.
INLINE int leave(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot, __u64 outside, __u16 vlan,
                 __u32 bytes)
{
    __u32 at = outside >> 48;
    __u64 neighbour = outside & 0xffffffffffffULL;

    if (UNLIKELY(!neighbour))
        at = w->services[w->slots[slot & (SLOTS - 1)].service & (SERVICES - 1)].uplink;
    struct uplink *uplink = &w->uplinks[at & (UPLINKS - 1)];
    struct uplink_counts *uc = &c->uplinks[at & (UPLINKS - 1)];
    if (UNLIKELY(!uplink->is_up)) {
        uc->dropped++;
        return drop(c, DROPPED_UPLINK_DOWN);
    }
    uc->sent_packets++;
    uc->sent_bytes += bytes;
    if (UNLIKELY(!neighbour))
        return bpf_redirect_neigh(uplink->ifindex, 0, 0, 0);
    if (!set_macs(skb, (__u8 *)&neighbour, uplink->mac))
        return drop(c, DROPPED_LOST);
    if (UNLIKELY(vlan) && bpf_skb_vlan_push(skb, BE16(0x8100), vlan))
        return drop(c, DROPPED_LOST);
    return uplink->is_peer ? bpf_redirect_peer(uplink->ifindex, 0) : bpf_redirect(uplink->ifindex, 0);
}

// A packet that is no service's: as the plan says.
INLINE int fall_back(struct __sk_buff *skb, struct counts *c, __u32 at, __u32 how, __u32 pass_to, __u32 reason)
{
    struct uplink_counts *uc = &c->uplinks[at & (UPLINKS - 1)];
    if (how == TO_HOST) {
        uc->to_host++;
        return TC_ACT_OK;
    }
    count_received(c, at, skb->len);
    if (how == PASS && pass_to) {
        uc->passed++;
        return bpf_redirect(pass_to, 0);
    }
    return drop(c, reason);
}

// The answer is put into the packet, which goes back.
INLINE int send_back(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    struct uplink *uplink = &w->uplinks[at & (UPLINKS - 1)];
    struct eth *eth = (void *)(long)skb->data;
    __u8 peer[6];

    if ((void *)(eth + 1) > (void *)(long)skb->data_end)
        return TC_ACT_SHOT;
    COPY(peer, eth->src, 6);
    COPY(eth->dst, peer, 6);
    COPY(eth->src, uplink->mac, 6);
    c->uplinks[at & (UPLINKS - 1)].answered++;
    return bpf_redirect(uplink->ifindex, 0);
}

INLINE int is_answered(const struct address *address, __u32 uplink)
{
    __u32 *uplinks = bpf_map_lookup_elem(&addresses, address);
    return uplinks && *uplinks >> (uplink & (UPLINKS - 1)) & 1;
}
