// The two programs: one at each uplink, one at the host's end of each instance's pair. `tc_classid` says which
// uplink or slot it is, plus one: each attachment has its own.
#include "answer.h"
#include "check.h"
#include "signal.h"
#include "tunnel.h"

// Whether one receiver is meant.
INLINE int is_unicast(struct __sk_buff *skb)
{
    return skb->pkt_type != PACKET_BROADCAST && skb->pkt_type != PACKET_MULTICAST;
}

// A packet that no instance gets: those that could not be read are dropped if they are for a service's address.
NOINLINE int not_steered(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at, __u32 unread)
{
    struct uplink *uplink = &w->uplinks[at & (UPLINKS - 1)];
    if (unread) {
        struct address address = {};
        __u8 v4[4];
        int is_ours = 0;
        if (skb->protocol == BE16(ETH_IP) && !bpf_skb_load_bytes(skb, ETH_BYTES + 16, v4, 4)) {
            mapped(&address, v4);
            is_ours = is_answered(&address, at);
        } else if (skb->protocol == BE16(ETH_IP6) && !bpf_skb_load_bytes(skb, ETH_BYTES + 24, &address, 16)) {
            is_ours = is_answered(&address, at);
        }
        if (is_ours)
            return lost(c, at, skb->len, unread - 1);
    }
    return fall_back(skb, c, at, w->settings.unmatched, uplink->unmatched_to,
                     unread ? unread - 1 : DROPPED_UNMATCHED);
}

INLINE int is_own_source_v4(struct __sk_buff *skb, const struct slot *row)
{
    __be32 src;
    if (bpf_skb_load_bytes(skb, ETH_BYTES + 12, &src, 4) || !src)
        return 0;
    return src == row->own4 || (src == row->vip4 && !(row->flags & SLOT_DNAT));
}

INLINE int is_own_source_v6(struct __sk_buff *skb, const struct slot *row)
{
    __u64 src[2];
    if (bpf_skb_load_bytes(skb, ETH_BYTES + 8, src, 16) || !(src[0] | src[1]))
        return 0;
    if (src[0] == row->own6[0] && src[1] == row->own6[1])
        return 1;
    return src[0] == row->vip6[0] && src[1] == row->vip6[1] && !(row->flags & SLOT_DNAT);
}

INLINE void source_v4(const struct key4 *key, __u8 direction, struct address *to)
{
    mapped(to, direction ? key->b : key->a);
}

INLINE void source_v6(const struct key6 *key, __u8 direction, struct address *to)
{
    COPY(to, direction ? key->b : key->a, 16);
}

#define KEY struct key4
#define FLOWS flows_v4
#define PLACE place4
#define ORDER order_v4
#define NAME(x) x##_v4
#define FAMILY 4
#define PARSE parse4
#define HASH hash4
#define SOURCE source_v4
#include "steer.h"
#undef KEY
#undef FLOWS
#undef PLACE
#undef ORDER
#undef NAME
#undef FAMILY
#undef PARSE
#undef HASH
#undef SOURCE

#define KEY struct key6
#define FLOWS flows_v6
#define PLACE place6
#define ORDER order_v6
#define NAME(x) x##_v6
#define FAMILY 6
#define PARSE parse6
#define HASH hash6
#define SOURCE source_v6
#include "steer.h"

// More packets than usual, or the first one after a pause, wake inco up, once.
INLINE void count_moved(struct counts *c)
{
    if (LIKELY(++c->moved < c->mark))
        return;
    c->mark = ~0ULL;
    c->event.kind = EVENT_ALARM;
    if (bpf_ringbuf_output(&events, &c->event, sizeof c->event, RB_FORCE_WAKEUP))
        c->lost_events++;
}

// What became of a packet from the network. It moves inco's counters unless it is left to this machine.
INLINE int seen(struct counts *c, int verdict)
{
    if (verdict != TC_ACT_OK)
        count_moved(c);
    return verdict;
}

// The same of a packet that steering has seen.
INLINE int steered(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at, int verdict)
{
    if (UNLIKELY(verdict >= TO_TUNNEL))
        verdict = into_tunnel(skb, w, c, verdict & (SLOTS - 1), at);
    return seen(c, verdict);
}

INLINE int is_udp(struct __sk_buff *skb)
{
    if (UNLIKELY(!is_readable(skb, ETH_BYTES + sizeof(struct ip4))))
        return 0;
    struct ip4 *ip = (void *)(long)skb->data + ETH_BYTES;
    return (void *)(ip + 1) <= (void *)(long)skb->data_end && ip->protocol == PROTO_UDP;
}

SEC("classifier")
int inco_uplink(struct __sk_buff *skb)
{
    struct world *w = the_world();
    struct counts *c = counts_of_this_cpu();
    __u32 at = skb->tc_classid - 1;
    int answered = -1;

    if (!w || !c || at >= UPLINKS)
        return TC_ACT_OK;
    if (LIKELY(skb->protocol == BE16(ETH_IP))) {
        if (UNLIKELY(!is_unicast(skb)))
            return not_steered(skb, w, c, at, 0);
        // What comes out of a tunnel may be of the other IP version.
        int of_tunnel = is_udp(skb) ? out_of_tunnel(skb, w, c, at) : NO_TUNNEL;
        if (UNLIKELY(of_tunnel >= 0))
            return seen(c, of_tunnel);
    }
    if (LIKELY(skb->protocol == BE16(ETH_IP))) {
        struct ip4 *ip = (void *)(long)skb->data + ETH_BYTES;
        if (LIKELY((void *)(ip + 1) <= (void *)(long)skb->data_end) && UNLIKELY(ip->protocol == PROTO_ICMP))
            answered = answer_ping4(skb, w, c, at);
        return answered >= 0 ? answered : steered(skb, w, c, at, from_uplink_v4(skb, w, c, at));
    }
    if (skb->protocol == BE16(ETH_IP6)) {
        struct ip6 *ip = (void *)(long)skb->data + ETH_BYTES;
        if (LIKELY((void *)(ip + 1) <= (void *)(long)skb->data_end) && UNLIKELY(ip->next == PROTO_ICMP6))
            answered = answer6(skb, w, c, at);
        if (answered >= 0)
            return answered;
        return is_unicast(skb) ? steered(skb, w, c, at, from_uplink_v6(skb, w, c, at))
                               : not_steered(skb, w, c, at, 0);
    }
    if (skb->protocol == BE16(ETH_ARP)) {
        hear_machine(skb, at);
        answered = answer_arp(skb, w, c, at);
        if (answered >= 0)
            return answered;
    }
    return fall_back(skb, c, at, w->settings.other, w->uplinks[at & (UPLINKS - 1)].other_to, DROPPED_OTHER);
}

SEC("classifier")
int inco_instance(struct __sk_buff *skb)
{
    struct world *w = the_world();
    struct counts *c = counts_of_this_cpu();
    __u32 slot = skb->tc_classid - 1;

    if (!w || !c || slot >= SLOTS)
        return TC_ACT_SHOT;
    struct slot *row = &w->slots[slot];
    // Dropped or not, it is the instance's own.
    count_moved(c);
    c->slots[slot].back_packets++;
    c->slots[slot].back_bytes += skb->len;
    // An instance that sleeps is in no plan.
    if (UNLIKELY(is_signal(skb)))
        return drop(c, row->state == SLOT_FAILED ? DROPPED_LOST : take_signal(skb, slot));
    if (UNLIKELY(row->state == SLOT_FREE || row->state == SLOT_FAILED))
        return drop(c, DROPPED_LOST);
    // Its neighbours are fixed and its network ends here: multicast is housekeeping that nobody waits for.
    if (LIKELY(!skb->vlan_present) && LIKELY(is_unicast(skb))) {
        if (LIKELY(skb->protocol == BE16(ETH_IP)))
            return from_instance_v4(skb, w, c, slot);
        if (skb->protocol == BE16(ETH_IP6))
            return from_instance_v6(skb, w, c, slot);
    }
    return drop(c, DROPPED_OTHER);
}

// A step of the walks over both flow tables, which removes what is over. inco runs it again and again; no packet passes
// through it.
SEC("raw_tp")
int inco_sweep(void *context)
{
    (void)context;
    struct world *w = the_world();
    if (!w)
        return 0;
    __u64 now = bpf_ktime_get_ns();
    walk_v4(w->settings.sweep_row, now);
    walk_v6(w->settings.sweep_row, now);
    return 0;
}

// Some helper functions are for programs of such a licence alone.
char program_license[] SEC("license") = "Dual MIT/GPL";
