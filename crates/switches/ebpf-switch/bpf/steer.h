// The flow table of one IP version, and what happens to its packets. Included twice, with other names:
//   KEY, FLOWS, PLACE, ORDER, NAME(x), FAMILY, PARSE, HASH, and SOURCE(key, direction, address): the address of one end.

// Gives a flow its place in the order.
INLINE void NAME(enlist)(struct world *w, struct flow *flow, const KEY *key)
{
    struct order *order = &w->order[FAMILY == 6];
    __u64 number = __sync_fetch_and_add(&order->head, 1);
    __u32 at = number % (order->places ? order->places : 1);
    struct PLACE *place = bpf_map_lookup_elem(&ORDER, &at);
    if (!place)
        return;
    flow->place = number;
    place->key = *key;
    __sync_lock_test_and_set(&place->number, number + 1);
}

INLINE int NAME(has_place)(const struct world *w)
{
    const struct order *order = &w->order[FAMILY == 6];
    return order->head - order->tail + SPARE_PLACES <= order->places;
}

// Looks at the flow whose turn it is, and removes it if it is over: by its timeout, which depends on its protocol and
// state. Gives 1 at the end.
static long NAME(look)(__u32 turn, struct walk *k)
{
    (void)turn;
    struct order *order = &k->world->order[FAMILY == 6];
    __u64 number = order->tail;
    if (number == k->end)
        return 1;
    __u32 at = number % (order->places ? order->places : 1);
    struct PLACE *place = bpf_map_lookup_elem(&ORDER, &at);
    // A CPU has taken the place and has not written it yet.
    if (!place || *(volatile __u64 *)&place->number != number + 1)
        return 1;
    order->tail = number + 1;
    struct flow *flow = bpf_map_lookup_elem(&FLOWS, &place->key);
    if (!flow || flow->place != number)
        return 0;
    __s64 idle = k->now - flow->seen;
    if (idle < (__s64)timeout_of(k->world, place->key.protocol, flow->tcp)) {
        NAME(enlist)(k->world, flow, &place->key);
        return 0;
    }
    __u64 pin = flow->pin;
    if (flow->tcp == TCP_HANDSHAKE &&
        __sync_val_compare_and_swap(&flow->tcp, TCP_HANDSHAKE, TCP_CLOSED) == TCP_HANDSHAKE)
        count_half_open(k->world, pin, -1);
    if (bpf_map_delete_elem(&FLOWS, &place->key) == 0) {
        count_end(k->world, k->counts, pin);
        k->counts->ended[FAMILY == 6]++;
    }
    return 0;
}

// A step of the walk over the table, which counts in a row. Gives 0 where somebody else walks.
CHECKED_ALONE int NAME(walk)(__u32 row, __u64 now)
{
    struct world *w = the_world();
    struct counts *c = bpf_map_lookup_elem(&counts, &row);
    if (!w || !c)
        return 0;
    struct order *order = &w->order[FAMILY == 6];
    struct walk k = {.world = w, .counts = c, .now = now, .end = order->head};
    if (__sync_val_compare_and_swap(&order->is_walked, 0, 1))
        return 0;
    bpf_loop(STEP, NAME(look), &k, 0);
    __sync_lock_test_and_set(&order->is_walked, 0);
    return 1;
}

// The table is full: makes room, unless that was tried a moment ago with little success. Gives whether it did.
INLINE int NAME(make_room)(struct world *w, const struct counts *c)
{
    struct order *order = &w->order[FAMILY == 6];
    __u64 began = bpf_ktime_get_ns(), ended = c->ended[FAMILY == 6];
    if (began < order->walk_after || !NAME(walk)(bpf_get_smp_processor_id(), began))
        return 0;
    __u64 over = bpf_ktime_get_ns();
    // Where many flows were over, the next step is not needed before as many new ones have come.
    order->walk_after = c->ended[FAMILY == 6] - ended < WALK_YIELD ? over + (over - began) * WALK_SHARE : 0;
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

// The question of which service a packet is that goes `towards` a direction.
INLINE void NAME(ask)(struct question *q, struct world *w, const KEY *key, __u8 towards, __u32 uplink)
{
    q->world = w;
    q->protocol = key->protocol;
    q->family = FAMILY;
    q->vlan = key->vlan;
    SOURCE(key, towards, &q->src);
    SOURCE(key, towards ^ 1, &q->dst);
    q->src_port = towards ? key->b_port : key->a_port;
    q->dst_port = towards ? key->a_port : key->b_port;
    q->uplink = uplink;
}

NOINLINE int NAME(service_of)(struct world *w, const KEY *key, __u8 towards, __u32 uplink)
{
    struct question q = {};
    NAME(ask)(&q, w, key, towards, uplink);
    return classify(&q);
}

// Pins a flow that has no valid pin. Gives its slot, or NOT_OURS, NO_INSTANCE, NO_ROOM.
NOINLINE int NAME(set_up_flow)(struct NAME(set_up) *s)
{
    struct world *w = s->w;
    struct counts *c = s->c;
    struct question q = {};
    __u64 now = bpf_ktime_get_coarse_ns();
    __u32 service, by = PICK_BY_FLOW;
    int slot = s->slot, floods = 0;
    __u64 hash = s->hash;

    if (s->by_instance) {
        service = w->slots[slot & (SLOTS - 1)].service & (SERVICES - 1);
    } else {
        NAME(ask)(&q, w, s->key, s->inside ^ 1, s->uplink);
        int found = classify(&q);
        if (found < 0)
            return NOT_OURS;
        service = found & (SERVICES - 1);
        int is_tcp = s->key->protocol == PROTO_TCP && !s->flow;
        by = w->services[service].by;
        __u32 shared_by = w->services[service].shared_by;
        hash = by >= PICK_BY_RSS ? rss_hash(&q, by) : spread(&q, by == PICK_BY_SOURCE ? SHARED_BY_SOURCE : shared_by);
        // Too many connections are opened and not acknowledged: the acknowledgement will be pinned.
        floods = is_tcp && s->tcp == TCP_HANDSHAKE && is_flooded(w, service);
        // The middle of a connection of which nothing is known, or what comes before that; or the programs are being
        // exchanged for those of another release, with another table: both pick alike.
        if (floods || s->is_error || w->settings.by_hash || (is_tcp && s->tcp != TCP_HANDSHAKE))
            by = by == PICK_PREPARED ? PICK_BY_FLOW : by;
        if (is_tcp && s->tcp != TCP_HANDSHAKE && !s->is_error)
            c->services[service].recovered++;
        if (UNLIKELY(w->settings.by_hash) && s->flow && is_valid(w, s->flow->pin))
            slot = PIN_SLOT(s->flow->pin);
        else
            slot = shared_by ? slot_shared_with(&q, service) : -1;
        if (slot < 0) {
            slot = pick(service, hash, by);
            if (slot >= 0 && shared_by && !floods && !s->is_error)
                slot = share_slot_with(&q, service, slot);
        }
        if (slot >= 0 && floods)
            c->services[service].flooded++;
        if (slot >= 0 && (floods || s->is_error))
            return slot;
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
            if (__sync_lock_test_and_set(&flow->tcp, s->tcp) == TCP_HANDSHAKE)
                count_half_open(w, before, -1);
            if (s->tcp == TCP_HANDSHAKE)
                count_half_open(w, pin, 1);
        } else {
            c->slots[slot].expected_moves++;
        }
        flow->inside = s->inside;
        NAME(begin)(s, flow, pin, now);
        return slot;
    }
    {
        // The stack has no room for it.
        struct flow *fresh = &c->fresh;
        __builtin_memset(fresh, 0, sizeof *fresh);
        fresh->pin = pin;
        fresh->seen = now;
        fresh->pinned_at = now;
        fresh->outside = s->outside;
        fresh->opener = s->direction;
        fresh->inside = s->inside;
        fresh->tcp = s->tcp;
        long failed = -ENOMEM;
        if (LIKELY(NAME(has_place)(w)))
            failed = bpf_map_update_elem(&FLOWS, s->key, fresh, BPF_NOEXIST);
        if (failed && failed != -EEXIST && NAME(make_room)(w, c))
            failed = bpf_map_update_elem(&FLOWS, s->key, fresh, BPF_NOEXIST);
        if (failed && failed != -EEXIST) {
            c->table_full++;
            s->is_unpinned = 1;
            struct service_counts *sc = &c->services[service];
            if (w->services[service].drops_when_full) {
                sc->offered_packets++;
                return NO_ROOM;
            }
            // By its hash, so that its next packets go there, too.
            slot = s->by_instance ? slot : pick(service, hash, by == PICK_PREPARED ? PICK_BY_FLOW : by);
            sc->unpinned++;
            return slot;
        }
        flow = bpf_map_lookup_elem(&FLOWS, s->key);
        if (!flow)
            return slot;
        s->flow = flow;
        if (failed)
            return PIN_SLOT(flow->pin);
        NAME(enlist)(w, flow, s->key);
        if (s->tcp == TCP_HANDSHAKE)
            count_half_open(w, pin, 1);
    }
    c->started[FAMILY == 6]++;
    NAME(begin)(s, flow, pin, now);
    return slot;
}

// A packet that may change a connection's state. Gives 1 where another connection begins in its place.
INLINE int NAME(follow_tcp)(struct world *w, struct flow *flow, __u32 flags, __u32 direction)
{
    __u32 before = *(volatile __u32 *)&flow->tcp, after = before;
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
    // What another CPU has changed meanwhile holds.
    if (after != before && __sync_val_compare_and_swap(&flow->tcp, before, after) == before &&
        before == TCP_HANDSHAKE)
        count_half_open(w, flow->pin, -1);
    return 0;
}

// The flows that share an instance go on to do so.
NOINLINE void NAME(go_on_sharing)(struct world *w, const KEY *key, __u8 towards, __u32 service, __u32 shared_by)
{
    struct question q = {};
    struct shared shared = {};
    NAME(ask)(&q, w, key, towards, UPLINKS);
    share(&shared, &q, service, shared_by);
    shared_slot(&shared);
}

// Counts a packet with its flow. Gives 1 where another connection begins in its place.
INLINE int NAME(see)(struct world *w, struct flow *flow, const KEY *key, const struct packet *p, __u32 bytes)
{
    __u32 direction = p->direction & 1;
    if (UNLIKELY(p->is_error))
        return 0;
    if (key->protocol == PROTO_TCP && ((p->tcp_flags & (SYN | FIN | RST)) || flow->tcp == TCP_HANDSHAKE) &&
        NAME(follow_tcp)(w, flow, p->tcp_flags, direction))
        return 1;
    __u64 now = bpf_ktime_get_coarse_ns();
    __u32 service = PIN_SERVICE(flow->pin), shared_by = w->services[service].shared_by;
    if (UNLIKELY(shared_by) && direction != flow->inside &&
        ((flow->packets[direction] & (SHARED_PACKETS - 1)) == SHARED_PACKETS - 1 || now - flow->seen > SHARED_NS))
        NAME(go_on_sharing)(w, key, direction, service, shared_by);
    flow->seen = now;
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

// Translates a packet to an instance, if its flow's are. Gives 0 unless it fails.
INLINE int NAME(inward)(struct __sk_buff *skb, struct world *w, __u32 slot, const KEY *key, const struct packet *p,
                        __u32 inside)
{
    const struct slot *row = &w->slots[slot & (SLOTS - 1)];
    if (!NAME(is_translated)(row, key, inside))
        return 0;
    return NAME(translate)(skb, p, slot, key->protocol, 1);
}

// The neighbour towards an address to which no entry knows the way; 0 where it is not known.
NOINLINE __u64 NAME(neighbour)(const KEY *key, __u32 direction)
{
    struct address to;
    SOURCE(key, direction, &to);
    __u64 *known = bpf_map_lookup_elem(&neighbours, &to);
    return known ? *known : 0;
}

// Translates a packet from an instance, if its flow's are, and sends it out.
INLINE int NAME(outward)(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot, const KEY *key,
                         const struct packet *p, __u64 outside, __u32 bytes)
{
    if (UNLIKELY(!outside))
        outside = NAME(neighbour)(key, p->direction ^ 1);
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    if (NAME(is_translated)(row, key, p->direction) && NAME(translate)(skb, p, slot, key->protocol, 0))
        return drop(c, DROPPED_LOST);
    return leave(skb, w, c, slot, outside, key->vlan, bytes);
}

// A packet that was read.
struct NAME(arrival) {
    KEY key;
    struct packet packet;
};

// A packet of no known flow: an answer of an instance that others run, if it comes from one. Gives -1 if it does not, and
// where nobody waits for it: this machine may have asked. It counts as the instance's own, not as the uplink's.
NOINLINE int NAME(from_back_end)(struct __sk_buff *skb, struct world *w, struct counts *c, struct NAME(arrival) *of)
{
    KEY *key = &of->key;
    struct packet *p = &of->packet;
    struct back_end end = {};
    __u32 bytes = skb->len;
    __u64 outside;

    SOURCE(key, p->direction, &end.address);
    end.port = p->direction ? key->b_port : key->a_port;
    __u32 *found = bpf_map_lookup_elem(&back_ends, &end);
    if (!found)
        return -1;
    __u32 slot = (*found - 1) & (SLOTS - 1);
    struct slot *row = &w->slots[slot];
    struct slot_counts *sc = &c->slots[slot];
    // The source of an error may be a router on the way.
    if (row->state == SLOT_FREE || (p->is_error && !NAME(is_own_source)(skb, row)))
        return -1;
    key->vlan = w->services[row->service & (SERVICES - 1)].vlan;
    if (!NAME(readdress)(key, p, slot, 1))
        return -1;
    struct flow *flow = bpf_map_lookup_elem(&FLOWS, key);
    if (LIKELY(flow != 0)) {
        __u64 pin = *(volatile __u64 *)&flow->pin;
        int is_own = PIN_SLOT(pin) == slot && PIN_EPOCH(pin) == row->epoch;
        if (p->direction != flow->inside)
            return -1;
        sc->back_packets++;
        sc->back_bytes += bytes;
        // Its flow has gone to another one.
        if (!is_own || row->state == SLOT_FAILED)
            return spoofed(c, sc);
        NAME(see)(w, flow, key, p, bytes);
        outside = flow->outside;
    } else {
        // A flow that had no room, or a connection of a flood: where it came from is known.
        outside = NAME(neighbour)(key, p->direction ^ 1);
        if (!outside || p->is_error || (p->tcp_flags & (SYN | ACK)) == SYN)
            return -1;
        sc->back_packets++;
        sc->back_bytes += bytes;
    }
    if (UNLIKELY(skb->vlan_present) && bpf_skb_vlan_pop(skb))
        return drop(c, DROPPED_LOST);
    return NAME(outward)(skb, w, c, slot, key, p, outside, bytes);
}

// A packet from the network.
NOINLINE int NAME(from_uplink)(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 uplink)
{
    KEY key = {};
    struct packet p;
    __u32 bytes = skb->len;

    p.from = 0;
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
            if (LIKELY(row->epoch == PIN_EPOCH(pin)) && LIKELY(!NAME(see)(w, flow, &key, &p, bytes))) {
                __u64 outside = outside_of(skb, uplink);
                if (UNLIKELY(flow->outside != outside) && !p.is_error)
                    flow->outside = outside;
                if (NAME(inward)(skb, w, PIN_SLOT(pin), &key, &p, flow->inside))
                    return lost(c, uplink, bytes, DROPPED_LOST);
                return deliver(skb, w, c, PIN_SLOT(pin), PIN_SERVICE(pin), uplink, bytes);
            }
        }
    }
    if (UNLIKELY(w->settings.back_ends) && !flow) {
        struct NAME(arrival) arrival = {.key = key, .packet = p};
        int answered = NAME(from_back_end)(skb, w, c, &arrival);
        if (answered >= 0)
            return answered;
    }
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
            .is_error = p.is_error,
            .uplink = uplink,
        };
        slot = NAME(set_up_flow)(&s);
        if (slot < 0)
            return slot == NOT_OURS ? not_steered(skb, w, c, uplink, 0)
                                    : lost(c, uplink, bytes,
                                           slot == NO_ROOM ? DROPPED_TABLE_FULL : DROPPED_NO_INSTANCE);
        if (s.flow && !p.is_error) {
            s.flow->outside = s.outside;
            NAME(see)(w, s.flow, &key, &p, bytes);
        } else if (!p.is_error) {
            // What answers finds its way by this.
            struct address client;
            SOURCE(&key, p.direction, &client);
            bpf_map_update_elem(&neighbours, &client, &s.outside, BPF_ANY);
        }
    }
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    if (NAME(inward)(skb, w, slot, &key, &p, p.direction ^ 1))
        return lost(c, uplink, bytes, DROPPED_LOST);
    return deliver(skb, w, c, slot & (SLOTS - 1), row->service, uplink, bytes);
}

// A packet from an instance.
NOINLINE int NAME(from_instance)(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot)
{
    KEY key = {};
    struct packet p;
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    struct slot_counts *sc = &c->slots[slot & (SLOTS - 1)];
    __u32 bytes = skb->len;

    p.from = slot + 1;
    if (!PARSE(skb, &key, &p))
        return drop(c, p.drop - 1);
    // It has no tag of its own: the service's network is where it sends to.
    key.vlan = w->services[row->service & (SERVICES - 1)].vlan;
    // Where addresses are translated, flows are known by the service's; but the instance may open some by its own.
    int is_service = UNLIKELY(row->flags & SLOT_DNAT) && NAME(readdress)(&key, &p, slot, 1);
    struct flow *flow = bpf_map_lookup_elem(&FLOWS, &key);
    if (UNLIKELY(is_service) && !flow) {
        NAME(readdress)(&key, &p, slot, 0);
        flow = bpf_map_lookup_elem(&FLOWS, &key);
        if (!flow)
            NAME(readdress)(&key, &p, slot, 1);
    }
    __u64 hash = HASH(w, &key);
    if (LIKELY(flow != 0)) {
        __u64 pin = *(volatile __u64 *)&flow->pin;
        int is_own = PIN_SLOT(pin) == slot && PIN_EPOCH(pin) == row->epoch && PIN_TAG(pin) == (__u16)(hash >> 48);
        if (p.is_error) {
            // It quotes what came from the network.
            if (!is_own || p.direction != flow->inside || !NAME(is_own_source)(skb, row))
                return spoofed(c, sc);
            return NAME(outward)(skb, w, c, slot, &key, &p, flow->outside, bytes);
        }
        if (LIKELY(is_own) && LIKELY(p.direction == flow->inside)) {
            if (LIKELY(!NAME(see)(w, flow, &key, &p, bytes)))
                return NAME(outward)(skb, w, c, slot, &key, &p, flow->outside, bytes);
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
        // What answers belongs to a flow that had no room, or that was forgotten while it was idle.
        int answers = tcp != TCP_HANDSHAKE && NAME(service_of)(w, &key, p.direction ^ 1, UPLINKS) == row->service;
        // Neither what opens a connection of a flood nor what refuses one makes an entry.
        if (answers && ((p.tcp_flags & RST) || ((p.tcp_flags & SYN) && is_flooded(w, row->service))))
            return NAME(outward)(skb, w, c, slot, &key, &p, 0, bytes);
        if (!answers) {
            if (!(row->flags & SLOT_EGRESS))
                return spoofed(c, sc);
            if (is_service) {
                NAME(readdress)(&key, &p, slot, 0);
                hash = HASH(w, &key);
            }
        }
        struct NAME(set_up) s = {
            .w = w,
            .c = c,
            .key = &key,
            .flow = flow,
            .hash = hash,
            .direction = answers ? p.direction ^ 1 : p.direction,
            .inside = p.direction,
            // What accepts a connection waits for the acknowledgement, too.
            .tcp = (p.tcp_flags & SYN) ? TCP_HANDSHAKE : tcp,
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
            NAME(see)(w, s.flow, &key, &p, bytes);
        return NAME(outward)(skb, w, c, slot, &key, &p, s.flow ? s.flow->outside : 0, bytes);
    }
}
