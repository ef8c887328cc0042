// The flow table of one IP version, and what happens to its packets. Included twice, with other names:
//   KEY, FLOWS, NAME(x), FAMILY, PARSE, HASH, and SOURCE(key, direction, address): the address of one end.

// Removes a flow that is over: by its timeout, which depends on its protocol and state.
static long NAME(expire)(void *map, KEY *key, struct flow *flow, struct sweep *s)
{
    (void)map;
    __s64 idle = s->now - flow->seen;
    if (idle < (__s64)timeout_of(s->world, key->protocol, flow->tcp))
        return 0;
    __u64 pin = flow->pin;
    if (bpf_map_delete_elem(&FLOWS, key) == 0) {
        count_end(s->world, s->counts, pin);
        s->counts->ended[FAMILY == 6]++;
    }
    return 0;
}

// The table is full: makes room, unless that was tried a moment ago. Gives whether it did.
NOINLINE int NAME(make_room)(struct world *w, struct counts *c)
{
    struct sweep s = {.world = w, .counts = c, .now = bpf_ktime_get_coarse_ns()};
    __u64 after = w->settings.sweep_after;
    if (s.now < after ||
        __sync_val_compare_and_swap(&w->settings.sweep_after, after, s.now + SWEEP_LONGEST_NS) != after)
        return 0;
    bpf_for_each_map_elem(&FLOWS, NAME(expire), &s, 0);
    __u64 over = bpf_ktime_get_coarse_ns();
    w->settings.sweep_after = over + SWEEP_PAUSE_NS + (over - s.now) * SWEEP_SHARE;
    return 1;
}

// What is known of a flow that is to be pinned.
struct NAME(set_up) {
    struct world *w;
    struct counts *c;
    KEY *key;
    struct flow *flow; // its entry, if there is one whose pin is void
    __u64 hash;
    __u64 outside;
    __u8 direction;
    __u8 inside;
    __u8 tcp;
    __u8 is_error;
    __u8 by_instance; // the instance has sent the packet
    __u8 is_unpinned; // out: there was no room
    __u16 uplink;
    __s32 slot;       // in: the instance's, if it has sent the packet; out: the flow's; below 0: none
};

// Counts a pin and sets the entry up for what begins.
INLINE void NAME(begin)(struct NAME(set_up) *s, struct flow *flow, __u64 pin, __u64 now)
{
    flow->seen = now;
    flow->pinned_at = now;
    struct slot_counts *sc = &s->c->slots[PIN_SLOT(pin)];
    sc->new_flows++;
    sc->started[PIN_EPOCH(pin) & (EPOCHS - 1)]++;
}

// Pins a flow that has no valid pin. Gives its slot, or NOT_OURS, NO_INSTANCE, NO_ROOM.
NOINLINE int NAME(set_up_flow)(struct NAME(set_up) *s)
{
    struct world *w = s->w;
    struct counts *c = s->c;
    struct question q = {.world = w, .protocol = s->key->protocol, .family = FAMILY, .vlan = s->key->vlan};
    // Towards the service.
    __u8 towards = s->inside ^ 1;
    SOURCE(s->key, towards, &q.src);
    SOURCE(s->key, s->inside, &q.dst);
    q.src_port = towards ? s->key->b_port : s->key->a_port;
    q.dst_port = towards ? s->key->a_port : s->key->b_port;
    q.uplink = s->by_instance ? UPLINKS : s->uplink;
    __u64 now = bpf_ktime_get_coarse_ns();
    __u32 service;
    int slot = s->slot;

    if (s->by_instance) {
        service = w->slots[slot & (SLOTS - 1)].service & (SERVICES - 1);
    } else {
        int found = classify(&q);
        if (found < 0)
            return NOT_OURS;
        service = found & (SERVICES - 1);
        __u32 by = w->services[service].by;
        __u64 hash = s->hash;
        if (by == PICK_BY_SOURCE)
            hash = mix_public(mix_public(__builtin_bswap64(q.src.part[0])) ^ __builtin_bswap64(q.src.part[1]));
        if (s->key->protocol == PROTO_TCP && s->tcp != TCP_HANDSHAKE && !s->flow) {
            // The middle of a connection of which nothing is known.
            by = by == PICK_PREPARED ? PICK_BY_FLOW : by;
            c->services[service].recovered++;
        }
        slot = pick(w, c, service, hash, by);
        if (slot < 0) {
            struct service_counts *sc = &c->services[service];
            sc->unserved++;
            sc->offered_packets++;
            return NO_INSTANCE;
        }
    }
    slot &= SLOTS - 1;
    __u64 pin = PIN(slot, service, s->hash, w->slots[slot].epoch);
    struct flow *flow = s->flow;
    if (flow) {
        // Its entry stays; its pin is void, or its connection has closed and another one begins.
        __u64 before = *(volatile __u64 *)&flow->pin;
        __u64 was = __sync_val_compare_and_swap(&flow->pin, before, pin);
        if (was != before)
            return PIN_SLOT(was);
        count_end(w, c, before);
        if (flow->tcp == TCP_CLOSED || s->tcp == TCP_HANDSHAKE) {
            flow->packets[0] = flow->packets[1] = flow->bytes[0] = flow->bytes[1] = 0;
            flow->opener = s->direction;
            flow->tcp = s->tcp;
        } else {
            c->slots[slot].expected_moves++;
        }
        flow->inside = s->inside;
        NAME(begin)(s, flow, pin, now);
        return slot;
    }
    {
        struct flow fresh = {
            .pin = pin,
            .seen = now,
            .pinned_at = now,
            .outside = s->outside,
            .opener = s->direction,
            .inside = s->inside,
            .tcp = s->tcp,
        };
        long failed = bpf_map_update_elem(&FLOWS, s->key, &fresh, BPF_NOEXIST);
        if (failed && failed != -EEXIST && NAME(make_room)(w, c))
            failed = bpf_map_update_elem(&FLOWS, s->key, &fresh, BPF_NOEXIST);
        if (failed && failed != -EEXIST) {
            c->table_full++;
            s->is_unpinned = 1;
            struct service_counts *sc = &c->services[service];
            if (w->services[service].drops_when_full) {
                sc->offered_packets++;
                return NO_ROOM;
            }
            // By its hash, so that its next packets go there, too.
            slot = s->by_instance ? slot : pick(w, c, service, s->hash, PICK_BY_FLOW);
            sc->unpinned++;
            return slot;
        }
        flow = bpf_map_lookup_elem(&FLOWS, s->key);
        if (!flow)
            return slot;
        s->flow = flow;
        if (failed)
            return PIN_SLOT(flow->pin);
    }
    c->started[FAMILY == 6]++;
    NAME(begin)(s, flow, pin, now);
    return slot;
}

// A packet that may change a connection's state. Gives 1 where another connection begins in its place.
INLINE int NAME(follow_tcp)(struct flow *flow, __u32 flags, __u32 direction)
{
    __u8 before = flow->tcp, after = before;
    if (flags & RST)
        after = TCP_CLOSED;
    else if (before == TCP_CLOSED)
        return (flags & (SYN | ACK)) == SYN;
    else if (flags & FIN)
        after = before == (direction ? TCP_FIN_FORWARD : TCP_FIN_REVERSE)   ? TCP_CLOSED
                : direction                                                 ? TCP_FIN_REVERSE
                                                                            : TCP_FIN_FORWARD;
    else if (before == TCP_HANDSHAKE && (flags & (SYN | ACK)) == ACK)
        after = TCP_ESTABLISHED;
    if (after != before)
        flow->tcp = after;
    return 0;
}

// Counts a packet with its flow. Gives 1 where another connection begins in its place.
INLINE int NAME(see)(struct flow *flow, const KEY *key, const struct packet *p, __u32 bytes)
{
    __u32 direction = p->direction & 1;
    if (UNLIKELY(p->is_error))
        return 0;
    if (key->protocol == PROTO_TCP && ((p->tcp_flags & (SYN | FIN | RST)) || flow->tcp == TCP_HANDSHAKE) &&
        NAME(follow_tcp)(flow, p->tcp_flags, direction))
        return 1;
    flow->seen = bpf_ktime_get_coarse_ns();
    __sync_fetch_and_add(&flow->packets[direction], 1);
    __sync_fetch_and_add(&flow->bytes[direction], bytes);
    return 0;
}

// The state that a flow's first packet puts it into.
INLINE __u8 NAME(first_state)(const KEY *key, const struct packet *p)
{
    if (key->protocol != PROTO_TCP)
        return TCP_NONE;
    return (p->tcp_flags & (SYN | ACK)) == SYN ? TCP_HANDSHAKE : TCP_ESTABLISHED;
}

// A packet from the network.
INLINE int NAME(from_uplink)(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 uplink)
{
    KEY key = {};
    struct packet p;
    __u32 bytes = skb->len;

    if (!PARSE(skb, &key, &p))
        return not_steered(skb, w, c, uplink, p.drop);
    __u64 hash = HASH(w, &key);
    struct flow *flow = bpf_map_lookup_elem(&FLOWS, &key);
    int slot;
    if (LIKELY(flow != 0)) {
        __u64 pin = *(volatile __u64 *)&flow->pin;
        struct slot *row = &w->slots[PIN_SLOT(pin)];
        if (PIN_TAG(pin) != (__u16)(hash >> 48)) {
            flow = 0;
        } else {
            if (UNLIKELY(p.direction == flow->inside))
                return not_steered(skb, w, c, uplink, 0);
            if (LIKELY(row->epoch == PIN_EPOCH(pin)) && LIKELY(!NAME(see)(flow, &key, &p, bytes))) {
                __u64 outside = outside_of(skb, uplink);
                if (UNLIKELY(flow->outside != outside) && !p.is_error)
                    flow->outside = outside;
                return deliver(skb, w, c, PIN_SLOT(pin), PIN_SERVICE(pin), uplink, bytes);
            }
        }
    }
    if (p.is_error)
        return not_steered(skb, w, c, uplink, 0);
    // Nobody in the network has that address: such a flow would take the answers to health checks away.
    if (UNLIKELY(NAME(is_from_checker)(skb)))
        return lost(c, uplink, bytes, DROPPED_SPOOFED);
    {
        struct NAME(set_up) s = {
            .w = w,
            .c = c,
            .key = &key,
            .flow = flow,
            .hash = hash,
            .outside = outside_of(skb, uplink),
            .direction = p.direction,
            .inside = p.direction ^ 1,
            .tcp = NAME(first_state)(&key, &p),
            .uplink = uplink,
        };
        slot = NAME(set_up_flow)(&s);
        if (slot < 0)
            return slot == NOT_OURS ? not_steered(skb, w, c, uplink, 0)
                                    : lost(c, uplink, bytes,
                                           slot == NO_ROOM ? DROPPED_TABLE_FULL : DROPPED_NO_INSTANCE);
        if (s.flow) {
            s.flow->outside = s.outside;
            NAME(see)(s.flow, &key, &p, bytes);
        }
    }
    return deliver(skb, w, c, slot & (SLOTS - 1), w->slots[slot & (SLOTS - 1)].service, uplink, bytes);
}

// A packet from an instance.
INLINE int NAME(from_instance)(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot)
{
    KEY key = {};
    struct packet p;
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    struct slot_counts *sc = &c->slots[slot & (SLOTS - 1)];
    __u32 bytes = skb->len;

    if (!PARSE(skb, &key, &p))
        return drop(c, p.drop - 1);
    // It has no tag of its own: the service's network is where it sends to.
    key.vlan = w->services[row->service & (SERVICES - 1)].vlan;
    __u64 hash = HASH(w, &key);
    struct flow *flow = bpf_map_lookup_elem(&FLOWS, &key);
    if (LIKELY(flow != 0)) {
        __u64 pin = *(volatile __u64 *)&flow->pin;
        int is_own = PIN_SLOT(pin) == slot && PIN_EPOCH(pin) == row->epoch && PIN_TAG(pin) == (__u16)(hash >> 48);
        if (p.is_error) {
            // It quotes what came from the network.
            if (!is_own || p.direction != flow->inside || !NAME(is_own_source)(skb, row))
                return spoofed(c, sc);
            return leave(skb, w, c, slot, flow->outside, key.vlan, bytes);
        }
        if (LIKELY(is_own) && LIKELY(p.direction == flow->inside)) {
            if (LIKELY(!NAME(see)(flow, &key, &p, bytes)))
                return leave(skb, w, c, slot, flow->outside, key.vlan, bytes);
        } else {
            // Another instance's, or the wrong way.
            return spoofed(c, sc);
        }
    }
    if (UNLIKELY(NAME(is_to_checker)(skb)) && NAME(is_own_source)(skb, row))
        return to_checker(skb, sc, bytes);
    if (p.is_error || !NAME(is_own_source)(skb, row))
        return spoofed(c, sc);
    {
        __u8 tcp = NAME(first_state)(&key, &p);
        struct question q = {.world = w, .protocol = key.protocol, .family = FAMILY, .vlan = key.vlan};
        SOURCE(&key, p.direction ^ 1, &q.src);
        SOURCE(&key, p.direction, &q.dst);
        q.src_port = p.direction ? key.a_port : key.b_port;
        q.dst_port = p.direction ? key.b_port : key.a_port;
        q.uplink = UPLINKS;
        // What answers belongs to a flow that had no room, or that was forgotten while it was idle.
        int answers = tcp != TCP_HANDSHAKE && classify(&q) == row->service;
        if (!answers && !(row->flags & SLOT_EGRESS))
            return spoofed(c, sc);
        struct NAME(set_up) s = {
            .w = w,
            .c = c,
            .key = &key,
            .flow = flow,
            .hash = hash,
            .direction = answers ? p.direction ^ 1 : p.direction,
            .inside = p.direction,
            .tcp = tcp,
            .by_instance = 1,
            .slot = slot,
        };
        int set = NAME(set_up_flow)(&s);
        if (set == NO_ROOM)
            return drop(c, DROPPED_TABLE_FULL);
        if (set != (int)slot)
            return spoofed(c, sc);
        if (!answers)
            sc->opened++;
        if (s.flow)
            NAME(see)(s.flow, &key, &p, bytes);
        return leave(skb, w, c, slot, s.flow ? s.flow->outside : 0, key.vlan, bytes);
    }
}
