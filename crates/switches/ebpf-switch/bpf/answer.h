// What is answered for a service's address: ARP, neighbour solicitations, pings.
#pragma once
#include "translate.h"

struct arp {
    __be16 hardware;
    __be16 protocol;
    __u8 lengths[2];
    __be16 operation;
    __u8 sender_mac[6];
    __u8 sender[4];
    __u8 target_mac[6];
    __u8 target[4];
};

// Gives -1 where the packet is not to be answered.
NOINLINE int answer_arp(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    struct address address;
    __u8 asked[4];

    if (!is_readable(skb, ETH_BYTES + sizeof(struct arp)))
        return -1;
    struct arp *arp = (void *)(long)skb->data + ETH_BYTES;
    if ((void *)(arp + 1) > (void *)(long)skb->data_end || arp->operation != BE16(1) || arp->protocol != BE16(ETH_IP))
        return -1;
    mapped(&address, arp->target);
    if (!is_answered(&address, at))
        return -1;
    COPY(asked, arp->target, 4);
    arp->operation = BE16(2);
    COPY(arp->target_mac, arp->sender_mac, 6);
    COPY(arp->target, arp->sender, 4);
    COPY(arp->sender_mac, w->uplinks[at & (UPLINKS - 1)].mac, 6);
    COPY(arp->sender, asked, 4);
    return send_back(skb, w, c, at);
}

// The checksum of an ICMPv6 message of `bytes` in `words`, whose own checksum is 0.
INLINE __u16 checksum6(struct ip6 *ip, __be32 *words, __u32 bytes)
{
    __be32 rest[2] = {BE32(bytes), BE32(PROTO_ICMP6)};
    __s64 sum = bpf_csum_diff(0, 0, (__be32 *)ip->src, 32, 0);
    sum = bpf_csum_diff(0, 0, rest, 8, sum);
    sum = bpf_csum_diff(0, 0, words, bytes, sum);
    __u32 folded = (__u32)sum;
    folded = (folded & 0xffff) + (folded >> 16);
    folded = (folded & 0xffff) + (folded >> 16);
    return ~folded;
}

// A neighbour solicitation for an answered address becomes its advertisement.
NOINLINE int answer_solicitation(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    // ICMPv6 header, target, one option with a link-layer address.
    enum { BYTES = 32 };
    struct uplink *uplink = &w->uplinks[at & (UPLINKS - 1)];
    struct ip6 ip;
    struct {
        __u8 type, code;
        __u16 checksum;
        __be32 flags;
        __u8 target[16];
        __u8 option[8];
    } message;
    struct address target;

    if (bpf_skb_load_bytes(skb, ETH_BYTES, &ip, sizeof ip) ||
        bpf_skb_load_bytes(skb, ETH_BYTES + 40, &message, 24) || ip.hops != 255)
        return -1;
    COPY(&target, message.target, 16);
    if (!is_answered(&target, at))
        return -1;
    // A probe for duplicates has no source: its sender would see that the address is taken. All nodes are told.
    __u64 source[2];
    COPY(source, ip.src, 16);
    int is_probe = !source[0] && !source[1];
    if (skb->len != ETH_BYTES + 40 + BYTES && bpf_skb_change_tail(skb, ETH_BYTES + 40 + BYTES, 0))
        return TC_ACT_SHOT;
    COPY(ip.dst, ip.src, 16);
    if (is_probe) {
        __builtin_memset(ip.dst, 0, 16);
        ip.dst[0] = 0xff;
        ip.dst[1] = 2;
        ip.dst[15] = 1;
    }
    COPY(ip.src, message.target, 16);
    ip.payload = BE16(BYTES);
    message.type = 136;
    message.checksum = 0;
    // Solicited (unless it is a probe) and override.
    message.flags = BE32(is_probe ? 0x20000000 : 0x60000000);
    message.option[0] = 2;
    message.option[1] = 1;
    COPY(message.option + 2, uplink->mac, 6);
    message.checksum = checksum6(&ip, (__be32 *)&message, BYTES);
    if (bpf_skb_store_bytes(skb, ETH_BYTES, &ip, sizeof ip, 0) ||
        bpf_skb_store_bytes(skb, ETH_BYTES + 40, &message, BYTES, 0))
        return TC_ACT_SHOT;
    return send_back(skb, w, c, at);
}

// A ping of an answered address is answered here, whatever its instances do.
NOINLINE int answer_ping4(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    struct ip4 ip;
    struct address address;
    __u8 type;

    if (bpf_skb_load_bytes(skb, ETH_BYTES, &ip, sizeof ip) || ip.version_ihl != 0x45 ||
        (ip.fragment & BE16(0x3fff)) || bpf_skb_load_bytes(skb, ETH_BYTES + 20, &type, 1) || type != 8)
        return -1;
    mapped(&address, ip.dst);
    if (!is_answered(&address, at))
        return -1;
    __u8 reply = 0, swapped[8];
    COPY(swapped, ip.dst, 4);
    COPY(swapped + 4, ip.src, 4);
    // The addresses change places, so the header's checksum stays.
    if (bpf_l3_csum_replace(skb, ETH_BYTES + 22, BE16(8 << 8), 0, 2) ||
        bpf_skb_store_bytes(skb, ETH_BYTES + 20, &reply, 1, 0) ||
        bpf_skb_store_bytes(skb, ETH_BYTES + 12, swapped, 8, 0))
        return TC_ACT_SHOT;
    return send_back(skb, w, c, at);
}

NOINLINE int answer_ping6(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    struct ip6 ip;
    struct address address;

    if (bpf_skb_load_bytes(skb, ETH_BYTES, &ip, sizeof ip))
        return -1;
    COPY(&address, ip.dst, 16);
    if (!is_answered(&address, at))
        return -1;
    __u8 reply = 129, swapped[32];
    COPY(swapped, ip.dst, 16);
    COPY(swapped + 16, ip.src, 16);
    if (bpf_l3_csum_replace(skb, ETH_BYTES + 42, BE16(128 << 8), BE16(129 << 8), 2) ||
        bpf_skb_store_bytes(skb, ETH_BYTES + 40, &reply, 1, 0) ||
        bpf_skb_store_bytes(skb, ETH_BYTES + 8, swapped, 32, 0))
        return TC_ACT_SHOT;
    return send_back(skb, w, c, at);
}

// Solicitations and pings of ICMPv6; -1 for all other messages.
INLINE int answer6(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    __u8 type;
    if (bpf_skb_load_bytes(skb, ETH_BYTES + 40, &type, 1))
        return -1;
    if (type == 135)
        return answer_solicitation(skb, w, c, at);
    return type == 128 ? answer_ping6(skb, w, c, at) : -1;
}
