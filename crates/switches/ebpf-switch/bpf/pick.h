// Which service a new flow is of, and which instance it gets.
#pragma once
#include "parse.h"

// A flow that is to be classified: addresses in mapped form.
struct question {
    const struct world *world;
    struct address src;
    struct address dst;
    __u16 src_port;
    __u16 dst_port;
    __u16 vlan;
    __u8 protocol;
    __u8 family;
    __u32 bank;
    __u32 uplink; // by which the packet came; UPLINKS: any
    __s32 service;
};

static long try_rule(__u32 at, struct question *q)
{
    const struct rule *r = &q->world->rules[q->bank & (BANKS - 1)][at & (RULES - 1)];
    if ((r->protocol && r->protocol != q->protocol) || (r->family && r->family != q->family) || r->vlan != q->vlan ||
        q->dst_port < r->dst_port[0] || q->dst_port > r->dst_port[1] || q->src_port < r->src_port[0] ||
        q->src_port > r->src_port[1])
        return 0;
    if ((q->dst.part[0] & r->dst_mask[0]) != r->dst[0] || (q->dst.part[1] & r->dst_mask[1]) != r->dst[1] ||
        (q->src.part[0] & r->src_mask[0]) != r->src[0] || (q->src.part[1] & r->src_mask[1]) != r->src[1])
        return 0;
    if (q->uplink < UPLINKS && !(r->uplinks >> q->uplink & 1))
        return 0;
    q->service = r->service;
    return 1;
}

// The service of a packet; -1 for none.
NOINLINE int classify(struct question *q)
{
    __u32 rules = *(volatile __u32 *)&q->world->settings.rules;
    q->service = -1;
    q->bank = rules >> 16;
    rules &= 0xffff;
    bpf_loop(rules < RULES ? rules : RULES, try_rule, q, 0);
    return q->service;
}

// What comes of setting a flow up, where it is no slot.
enum { NOT_OURS = -1, NO_INSTANCE = -2, NO_ROOM = -3 };

// How many prepared picks a new flow takes at most, until one is of an instance that still takes flows.
#define TRIES 8

INLINE int takes_flows(const struct world *w, __u32 slot, __u32 service)
{
    const struct slot *row = &w->slots[slot & (SLOTS - 1)];
    return row->state == SLOT_ACTIVE && row->service == service;
}

// The slot for a new flow; -1 for none. `place`: where the tables by hash are asked.
NOINLINE int pick(struct world *w, struct counts *c, __u32 service, __u64 hash, __u32 by)
{
    struct service *s = &w->services[service & (SERVICES - 1)];
    struct service_counts *sc = &c->services[service & (SERVICES - 1)];
    __u32 slot, actives = s->actives;

    if (!actives)
        return -1;
    if (by == PICK_PREPARED) {
        for (int i = 0; i < TRIES; i++) {
            __u32 place = __sync_fetch_and_add(&s->taken, 1);
            if ((__s32)(s->filled - place) <= 0) {
                sc->ran_out++;
                break;
            }
            slot = s->picks[place & (PICKS - 1)];
            if (takes_flows(w, slot, service))
                return slot;
            sc->skipped++;
        }
    } else {
        slot = s->table[hash >> 52];
        if (takes_flows(w, slot, service))
            return slot;
    }
    for (int i = 0; i < TRIES; i++) {
        slot = s->active[((__u32)hash + i) % actives & (SLOTS - 1)];
        if (takes_flows(w, slot, service))
            return slot;
    }
    return -1;
}

// A pin ends. Flows of an epoch are counted apart, so those of a purged one are not taken off the next one's.
INLINE void count_end(const struct world *w, struct counts *c, __u64 pin)
{
    if (w->slots[PIN_SLOT(pin)].epoch - PIN_EPOCH(pin) < EPOCHS)
        c->slots[PIN_SLOT(pin)].ended[PIN_EPOCH(pin) & (EPOCHS - 1)]++;
}

// A walk over the flows of a table.
struct walk {
    struct world *world;
    struct counts *counts;
    __u64 now;
    __u64 end; // the place where it ends
};

// Flows that one call looks at: some tenths of a millisecond, in which its CPU does nothing else.
#define STEP 1024
// A step in the path of packets is followed by a pause of this many times its duration.
#define WALK_SHARE 20
// Places that are kept free: CPUs that take one at once do not overtake the tail.
#define SPARE_PLACES 1024

INLINE __u64 timeout_of(const struct world *w, __u8 protocol, __u8 tcp)
{
    const __u64 *of = w->settings.timeouts;
    if (protocol == PROTO_TCP)
        return tcp == TCP_HANDSHAKE ? of[0] : tcp == TCP_CLOSED ? of[2] : of[1];
    if (protocol == PROTO_UDP)
        return of[3];
    if (protocol == PROTO_SCTP)
        return of[4];
    if (protocol == PROTO_ICMP || protocol == PROTO_ICMP6)
        return of[5];
    return of[6];
}
