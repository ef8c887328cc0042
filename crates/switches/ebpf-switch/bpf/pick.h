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

// The slot for a new flow; -1 for none.
CHECKED_ALONE int pick(__u32 service, __u64 hash, __u32 by)
{
    struct world *w = the_world();
    struct counts *c = counts_of_this_cpu();
    if (!w || !c)
        return -1;
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
            // Half of them are used: inco is woken up at the end of this packet's way, to prepare others.
            if (place == s->refill_at)
                c->mark = 0;
            slot = s->picks[place & (PICKS - 1)];
            if (takes_flows(w, slot, service))
                return slot;
            sc->skipped++;
        }
    } else {
        slot = s->table[by >= PICK_BY_RSS ? hash & (RSS_ENTRIES - 1) : hash >> 52];
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

// The hash of what flows have in common. It has no secret: two machines pick alike.
INLINE __u64 spread(const struct question *q, __u32 by)
{
    __u64 hash = mix_public(mix_public(__builtin_bswap64(q->src.part[0])) ^ __builtin_bswap64(q->src.part[1]));
    if (by == SHARED_BY_SOURCE)
        return hash;
    hash = mix_public(mix_public(hash ^ __builtin_bswap64(q->dst.part[0])) ^ __builtin_bswap64(q->dst.part[1]));
    if (by == SHARED_BY_ADDRESSES)
        return hash;
    return mix_public(hash ^ ((__u64)q->src_port << 32 | (__u64)q->dst_port << 16 | q->protocol));
}

// A flow is noted to go on after that many of its packets, or after a pause of that length. What it shares is
// remembered for that much longer than its idle timeout, see inco.
#define SHARED_PACKETS 64
#define SHARED_NS 1000000000ULL

// What cards hash: addresses, and ports of TCP and UDP, as they lie in a packet.
struct rss_input {
    __be32 words[9];
};

// The Toeplitz hash of so many words, with the standard key.
CHECKED_ALONE int toeplitz(const struct rss_input *input, __u32 words)
{
    // The key twice: each word with the one after it.
    const __u64 key[9] = {
        0x6d5a56da255b0ec2, 0x255b0ec24167253d, 0x4167253d43a38fb0, 0x43a38fb0d0ca2bcb, 0xd0ca2bcbae7b30b4,
        0xae7b30b477cb2da3, 0x77cb2da38030f20c, 0x8030f20c6a42b73b, 0x6a42b73bbeac01fa,
    };
    __u32 hash = 0;

    if (!input)
        return 0;
    for (__u32 i = 0; i < 9; i++) {
        if (i >= words)
            break;
        __u32 word = BE32(input->words[i]);
        for (int bit = 0; bit < 32; bit++)
            hash ^= (__u32)(key[i] << bit >> 32) & -(word >> (31 - bit) & 1);
    }
    return hash;
}

NOINLINE __u64 rss_hash(const struct question *q, __u32 by)
{
    struct rss_input input = {};
    __u32 words = q->family == 4 ? 2 : 8;
    if (q->family == 4) {
        input.words[0] = q->src.part[1] >> 32;
        input.words[1] = q->dst.part[1] >> 32;
    } else {
        COPY(input.words, &q->src, 16);
        COPY(input.words + 4, &q->dst, 16);
    }
    if (by == PICK_BY_RSS && (q->protocol == PROTO_TCP || q->protocol == PROTO_UDP)) {
        input.words[q->family == 4 ? 2 : 8] = BE32((__u32)q->src_port << 16 | q->dst_port);
        words++;
    }
    return (__u32)toeplitz(&input, words);
}

INLINE int is_valid(const struct world *w, __u64 pin)
{
    return w->slots[PIN_SLOT(pin)].epoch == PIN_EPOCH(pin);
}

INLINE int is_shared_pin(const struct world *w, __u64 pin, __u32 service)
{
    return takes_flows(w, PIN_SLOT(pin), service) && is_valid(w, pin);
}

INLINE void share(struct shared *key, const struct question *q, __u32 service, __u32 by)
{
    key->client = q->src;
    if (by == SHARED_BY_ADDRESSES)
        key->server = q->dst;
    key->service = service;
}

// The slot of those with which a flow shares it; -1 where there is none that takes flows. Checked with its callers:
// Linux 6.1 looks up no key that a function checked alone is given.
NOINLINE int shared_slot(const struct shared *key)
{
    struct world *w = the_world();
    if (!w || !key)
        return -1;
    __u32 service = key->service;
    struct shared_pin *known = bpf_map_lookup_elem(&shared_pins, key);
    __u64 now = bpf_ktime_get_coarse_ns();
    if (!known || now - known->seen > w->settings.shared_ns || !is_shared_pin(w, known->pin, service))
        return -1;
    known->seen = now;
    return PIN_SLOT(known->pin);
}

// Notes the slot of a flow for those with which it shares it. Gives the slot: another one, if another CPU was first.
NOINLINE int share_slot(const struct shared *key, __u32 slot)
{
    struct world *w = the_world();
    if (!w || !key)
        return -1;
    __u32 service = key->service & (SERVICES - 1);
    slot &= SLOTS - 1;
    struct shared_pin pin = {.pin = PIN(slot, service, 0ULL, w->slots[slot].epoch), .seen = bpf_ktime_get_coarse_ns()};
    if (!bpf_map_update_elem(&shared_pins, key, &pin, BPF_NOEXIST))
        return slot;
    struct shared_pin *known = bpf_map_lookup_elem(&shared_pins, key);
    if (!known)
        return slot;
    __u64 before = *(volatile __u64 *)&known->pin;
    if (pin.seen - known->seen <= w->settings.shared_ns && is_shared_pin(w, before, service))
        return PIN_SLOT(before);
    __u64 was = __sync_val_compare_and_swap(&known->pin, before, pin.pin);
    known->seen = pin.seen;
    return PIN_SLOT(was == before ? pin.pin : was);
}

// The same two for a flow of a service. On their own because stack is short: Linux 6.1 adds up more of it than later
// versions do.
NOINLINE int slot_shared_with(const struct question *q, __u32 service)
{
    struct shared shared = {};
    share(&shared, q, service, q->world->services[service & (SERVICES - 1)].shared_by);
    return shared_slot(&shared);
}

NOINLINE int share_slot_with(const struct question *q, __u32 service, __u32 slot)
{
    struct shared shared = {};
    share(&shared, q, service, q->world->services[service & (SERVICES - 1)].shared_by);
    return share_slot(&shared, slot);
}

// A connection is opened, or is so no more.
INLINE void count_half_open(struct world *w, __u64 pin, __s32 more)
{
    __sync_fetch_and_add(&w->services[PIN_SERVICE(pin)].half_open, more);
}

INLINE int is_flooded(const struct world *w, __u32 service)
{
    const struct service *s = &w->services[service & (SERVICES - 1)];
    return *(volatile __s32 *)&s->half_open >= s->half_open_limit;
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
// A step in the path of packets that removes fewer flows than WALK_YIELD is followed by a pause of WALK_SHARE times its
// duration. That can be long where the CPU itself was taken away meanwhile.
#define WALK_SHARE 20
#define WALK_YIELD 64
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
