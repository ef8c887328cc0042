// Addresses of services that are translated: in the packet, its checksums, and the packet that an ICMP error quotes.
#pragma once
#include "forward.h"

// A translation: to the instance's address and port, or back to the service's. Nothing says whether it goes wrong
// halfway: the packet is then dropped.
struct translation {
    const struct slot *row;
    __u32 protocol;  // of the packet that the key is of
    __u32 is_inward; // to the instance: of the destination, and of the source that an error quotes
};

INLINE __be16 port_before(const struct translation *t)
{
    return BE16(t->is_inward ? t->row->port : t->row->target_port);
}

INLINE __be16 port_after(const struct translation *t)
{
    return BE16(t->is_inward ? t->row->target_port : t->row->port);
}

// Where the checksum of TCP or UDP lies in its header.
INLINE __u32 checksum_place(__u32 protocol)
{
    return protocol == PROTO_TCP ? 16 : 6;
}

// The port of a packet's own header of TCP or UDP, and its checksum.
INLINE int translate_port(struct __sk_buff *skb, const struct packet *p, const struct translation *t)
{
    __be16 before = port_before(t), after = port_after(t);
    if (before == after)
        return 0;
    __u64 flags = t->protocol == PROTO_UDP ? F_MARK_MANGLED_0 : 0;
    return bpf_l4_csum_replace(skb, p->l4_at + checksum_place(t->protocol), before, after, 2 | flags) ||
           bpf_skb_store_bytes(skb, p->l4_at + (t->is_inward ? 2 : 0), &after, 2, 0);
}

// The port and the checksum of the header that an error quotes, as far as it quotes them, and the error's checksum.
// `difference`: of the addresses, as `bpf_csum_diff` gives it.
INLINE int translate_quoted(struct __sk_buff *skb, const struct packet *p, const struct translation *t,
                            __u32 difference)
{
    __u32 at = p->l4_at + checksum_place(t->protocol), error_at = p->icmp_at + 2;
    __be16 before = port_before(t), after = port_after(t), sum, new_sum;
    __u64 flags = t->protocol == PROTO_UDP ? F_MARK_MANGLED_0 : 0;

    // Cut off, or none.
    if (!bpf_skb_load_bytes(skb, at, &sum, 2) && (sum || t->protocol == PROTO_TCP)) {
        if (bpf_l4_csum_replace(skb, at, 0, difference, flags) ||
            (before != after && bpf_l4_csum_replace(skb, at, before, after, 2 | flags)) ||
            bpf_skb_load_bytes(skb, at, &new_sum, 2) || bpf_l4_csum_replace(skb, error_at, sum, new_sum, 2))
            return 1;
    }
    return before != after && (bpf_skb_store_bytes(skb, p->l4_at + (t->is_inward ? 0 : 2), &after, 2, 0) ||
                               bpf_l4_csum_replace(skb, error_at, before, after, 2));
}

// Gives 0 where it is done.
CHECKED_ALONE int translate_v4(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 protocol,
                               __u32 is_inward)
{
    struct world *w = the_world();
    if (!w || !p)
        return 1;
    struct translation of = {.row = &w->slots[slot & (SLOTS - 1)], .protocol = protocol, .is_inward = is_inward};
    const struct translation *t = &of;
    __be32 from = t->is_inward ? t->row->vip4 : t->row->own4;
    __be32 to = t->is_inward ? t->row->own4 : t->row->vip4;
    __u32 at = ETH_BYTES;

    if (bpf_l3_csum_replace(skb, at + 10, from, to, 4) ||
        bpf_skb_store_bytes(skb, at + (t->is_inward ? 16 : 12), &to, 4, 0))
        return 1;
    if (p->is_error) {
        // The quoted header's checksum changes by what its address changes, so the error's own stays.
        at = p->ip_at;
        if (bpf_l3_csum_replace(skb, at + 10, from, to, 4) ||
            bpf_skb_store_bytes(skb, at + (t->is_inward ? 12 : 16), &to, 4, 0))
            return 1;
        return p->has_l4 && translate_quoted(skb, p, t, bpf_csum_diff(&from, 4, &to, 4, 0));
    }
    if (!p->has_l4)
        return 0;
    __u64 flags = t->protocol == PROTO_UDP ? F_MARK_MANGLED_0 : 0;
    return bpf_l4_csum_replace(skb, p->l4_at + checksum_place(t->protocol), from, to, F_PSEUDO_HDR | flags | 4) ||
           translate_port(skb, p, t);
}

// Takes the difference of addresses into a checksum that covers them. Older kernels do not know that nothing else
// does; there a card's own sum is found wrong, and the kernel sums up itself.
INLINE int add_pseudo_v6(struct __sk_buff *skb, __u32 at, __u32 difference, __u64 flags)
{
    return bpf_l4_csum_replace(skb, at, 0, difference, F_PSEUDO_HDR | F_IPV6 | flags) &&
           bpf_l4_csum_replace(skb, at, 0, difference, F_PSEUDO_HDR | flags);
}

CHECKED_ALONE int translate_v6(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 protocol,
                               __u32 is_inward)
{
    struct world *w = the_world();
    if (!w || !p)
        return 1;
    struct translation of = {.row = &w->slots[slot & (SLOTS - 1)], .protocol = protocol, .is_inward = is_inward};
    const struct translation *t = &of;
    __be32 *from = (__be32 *)(t->is_inward ? t->row->vip6 : t->row->own6);
    __be32 *to = (__be32 *)(t->is_inward ? t->row->own6 : t->row->vip6);
    __u32 difference = bpf_csum_diff(from, 16, to, 16, 0);

    if (bpf_skb_store_bytes(skb, ETH_BYTES + (t->is_inward ? 24 : 8), to, 16, 0))
        return 1;
    if (p->is_error) {
        // Its checksum covers the outer addresses, and the quoted ones.
        return add_pseudo_v6(skb, p->icmp_at + 2, difference, 0) ||
               bpf_skb_store_bytes(skb, p->ip_at + (t->is_inward ? 8 : 24), to, 16, 0) ||
               bpf_l4_csum_replace(skb, p->icmp_at + 2, 0, difference, 0) ||
               (p->has_l4 && translate_quoted(skb, p, t, difference));
    }
    if (!p->has_l4)
        return 0;
    __u64 flags = t->protocol == PROTO_UDP ? F_MARK_MANGLED_0 : 0;
    return add_pseudo_v6(skb, p->l4_at + checksum_place(t->protocol), difference, flags) ||
           translate_port(skb, p, t);
}

// Whether an end of a key is that address.
INLINE int is_v4(const __u8 *end, __be32 address)
{
    __be32 of;
    COPY(&of, end, 4);
    return of == address;
}

INLINE int is_v6(const __u8 *end, const __u64 *address)
{
    __u64 of[2];
    COPY(of, end, 16);
    return of[0] == address[0] && of[1] == address[1];
}

// Puts the service's address and port into the key of a packet that comes from its instance's own, or the other way
// round. Gives 0 where it has not that source.
CHECKED_ALONE int readdress_v4(struct key4 *key, struct packet *p, __u32 slot, __u32 to_service)
{
    struct world *w = the_world();
    if (!w || !key || !p)
        return 0;
    const struct slot *row = &w->slots[slot & (SLOTS - 1)];
    __be32 from = to_service ? row->own4 : row->vip4, to = to_service ? row->vip4 : row->own4, dst;
    __u16 from_port = to_service ? row->target_port : row->port, to_port = to_service ? row->port : row->target_port;
    __u16 port = p->direction ? key->b_port : key->a_port, dst_port = p->direction ? key->a_port : key->b_port;

    if (!is_v4(p->direction ? key->b : key->a, from) || (from_port && from_port != port) ||
        (key->protocol != PROTO_TCP && key->protocol != PROTO_UDP))
        return 0;
    COPY(&dst, p->direction ? key->a : key->b, 4);
    p->direction = order4(key, to, dst, from_port ? to_port : port, dst_port);
    return 1;
}

CHECKED_ALONE int readdress_v6(struct key6 *key, struct packet *p, __u32 slot, __u32 to_service)
{
    struct world *w = the_world();
    if (!w || !key || !p)
        return 0;
    const struct slot *row = &w->slots[slot & (SLOTS - 1)];
    __u64 to[2], dst[2];
    __u16 from_port = to_service ? row->target_port : row->port, to_port = to_service ? row->port : row->target_port;
    __u16 port = p->direction ? key->b_port : key->a_port, dst_port = p->direction ? key->a_port : key->b_port;

    if (!is_v6(p->direction ? key->b : key->a, to_service ? row->own6 : row->vip6) ||
        (from_port && from_port != port) || (key->protocol != PROTO_TCP && key->protocol != PROTO_UDP))
        return 0;
    COPY(to, to_service ? row->vip6 : row->own6, 16);
    COPY(dst, p->direction ? key->a : key->b, 16);
    p->direction = order6(key, to, dst, from_port ? to_port : port, dst_port);
    return 1;
}

// Whether the packets of a flow are translated: the inner end is the service's address.
INLINE int is_translated_v4(const struct slot *row, const struct key4 *key, __u32 inside)
{
    return UNLIKELY(row->flags & SLOT_DNAT) && is_v4(inside ? key->b : key->a, row->vip4);
}

INLINE int is_translated_v6(const struct slot *row, const struct key6 *key, __u32 inside)
{
    return UNLIKELY(row->flags & SLOT_DNAT) && is_v6(inside ? key->b : key->a, row->vip6);
}
