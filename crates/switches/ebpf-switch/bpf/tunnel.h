// Tunnels (VXLAN, RFC 7348) by an uplink: outer headers before the frames of machines' flows, and frames taken out of
// the tunnels of machines that are known.
//
// The headers are written here, and no VXLAN device of the kernel is asked: the near end has an address that no network
// stack has, the next hop is the machine itself, and a packet of a pinned flow meets no routing table. The kernel is told
// which of the headers are outer ones (bpf_skb_adjust_room), so it divides packets of up to 64 KiB later, each part with
// all headers.
//
// Limits: IPv4 outside, without options. The sum of an outer UDP datagram is not checked: what is inside has sums of its
// own.
#pragma once
#include "forward.h"

enum {
    VXLAN_PORT = 4789,
    // IPv4, UDP and VXLAN headers. The Ethernet header of the frame is beside them.
    OUTER_BYTES = 20 + 8 + 8,
    ETH_TAG = 0x8100,
    TAG_BYTES = 4,
    // Of a frame that is too big: what an error quotes, and what says who its sender is.
    HEAD_BYTES = 128,
    // Frames in so many ns whose senders are told, at most.
    TOLD_NS = 10000000,
    TOLD_LIMIT = 10,
};

// What comes of a look at a packet, where it is no verdict.
enum { NO_TUNNEL = -1, OPENED = -2 };

// The near end. `src/tunnels.rs` has the same structures.
struct tunnel_end {
    __be32 address; // 0: there is none
    __u32 network;
    __u32 uplink;
    __u32 frame_limit; // of frames without outer headers
    __u32 receives;    // whether packets are taken out of tunnels
    __u32 told;        // senders since `told_since`
    __u64 told_since;
};

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, __u32);
    TYPE(value, struct tunnel_end);
} tunnel_end SEC(".maps");

// A machine at the other end of tunnels, by its address.
struct far_end {
    __u64 heard_at; // when it answered a question for its MAC address last
    __u8 mac[6];
    __u8 may_send; // its packets are taken out of tunnels
    __u8 zero;
};

// Each run has its own maps, filled before its programs are attached.
struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, 2048);
    TYPE(key, __be32);
    TYPE(value, struct far_end);
} far_ends SEC(".maps");

// The beginning of a frame that is too big.
struct big_frame {
    __u32 uplink;
    __u32 vlan; // its tag, if it is not 0
    __u8 bytes[HEAD_BYTES];
};

struct {
    UINT(type, MAP_RINGBUF);
    UINT(max_entries, 16384);
} big_frames SEC(".maps");

struct outer {
    struct eth eth;
    struct ip4 ip;
    __be16 ports[2];
    __be16 udp_len;
    __u16 udp_sum;
    __u8 flags[4];
    __u8 network[4]; // and a byte that is reserved
};
_Static_assert(sizeof(struct outer) == ETH_BYTES + OUTER_BYTES, "no gaps");

INLINE __u16 folded(__u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

// The sum of an IPv4 header without options; 0xffff where its checksum is right.
INLINE __u16 header_sum(const struct ip4 *ip)
{
    const __u16 *words = (const __u16 *)ip;
    __u32 sum = 0;
    for (int i = 0; i < 10; i++)
        sum += words[i];
    return folded(sum);
}

// A hash of the flow, for the outer source port. `packet::vxlan::flow_hash` is the same.
NOINLINE __u32 tunnel_hash(struct __sk_buff *skb)
{
    __u32 ends = 0, l4 = 0;
    __u8 protocol;
    __be16 ports[2] = {};
    if (skb->protocol == BE16(ETH_IP)) {
        struct ip4 ip;
        if (bpf_skb_load_bytes(skb, ETH_BYTES, &ip, sizeof ip))
            return 0;
        __u32 src, dst;
        COPY(&src, ip.src, 4);
        COPY(&dst, ip.dst, 4);
        ends = src ^ dst;
        protocol = ip.protocol;
        // Fragments have no ports, and a flow has one way with them, too.
        if (!(ip.fragment & BE16(0xbfff)))
            l4 = (ip.version_ihl & 15) * 4;
    } else {
        struct ip6 ip;
        if (bpf_skb_load_bytes(skb, ETH_BYTES, &ip, sizeof ip))
            return 0;
        __u32 words[8];
        COPY(words, ip.src, 32);
        for (int i = 0; i < 8; i++)
            ends ^= words[i];
        protocol = ip.next;
        l4 = sizeof ip;
    }
    if (l4 && has_ports(protocol))
        bpf_skb_load_bytes(skb, ETH_BYTES + l4, ports, 4);
    __u64 both = (__u64)BE32(ends) << 16 ^ BE16(ports[0]) ^ BE16(ports[1]);
    return both * 0x9e3779b97f4a7c15ULL >> 48;
}

// The longest frame that a packet becomes: where the kernel divides it later, the longest part.
NOINLINE __u32 longest_part(struct __sk_buff *skb)
{
    __u32 at = ETH_BYTES + 40, tcp = 0;
    __u8 first, protocol, offset = 0;
    if (!skb->gso_size)
        return skb->len;
    if (skb->protocol == BE16(ETH_IP)) {
        if (bpf_skb_load_bytes(skb, ETH_BYTES, &first, 1) || bpf_skb_load_bytes(skb, ETH_BYTES + 9, &protocol, 1))
            return skb->len;
        at = ETH_BYTES + (first & 15) * 4;
    } else if (bpf_skb_load_bytes(skb, ETH_BYTES + 6, &protocol, 1)) {
        return skb->len;
    }
    if (protocol == PROTO_TCP) {
        if (bpf_skb_load_bytes(skb, at + 12, &offset, 1))
            return skb->len;
        tcp = (offset >> 4) * 4;
    }
    return at + (tcp ? tcp : 8) + skb->gso_size;
}

// A frame does not fit into the tunnel: its sender is told by inco, up to a rate.
NOINLINE int too_big(struct __sk_buff *skb, struct counts *c, struct tunnel_end *end, __u32 uplink)
{
    __u64 now = bpf_ktime_get_coarse_ns(), since = *(volatile __u64 *)&end->told_since;
    if (now - since >= TOLD_NS && __sync_val_compare_and_swap(&end->told_since, since, now) == since)
        end->told = 0;
    if (*(volatile __u32 *)&end->told < TOLD_LIMIT && __sync_fetch_and_add(&end->told, 1) < TOLD_LIMIT) {
        struct big_frame *frame = bpf_ringbuf_reserve(&big_frames, sizeof *frame, 0);
        if (frame) {
            frame->uplink = uplink;
            frame->vlan = vlan_of(skb);
            if (bpf_skb_load_bytes(skb, 0, frame->bytes, HEAD_BYTES))
                bpf_ringbuf_discard(frame, 0);
            else
                bpf_ringbuf_submit(frame, RB_NO_WAKEUP);
        }
    }
    return drop(c, DROPPED_TOO_LARGE);
}

// Into the tunnel to the machine of a slot, and out by the uplink of tunnels. `from`: the uplink by which it came.
NOINLINE int into_tunnel(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 slot, __u32 from)
{
    __u32 zero = 0, bytes = skb->len, inner = ETH_BYTES;
    struct tunnel_end *end = bpf_map_lookup_elem(&tunnel_end, &zero);
    struct slot *row = &w->slots[slot & (SLOTS - 1)];
    struct slot_counts *sc = &c->slots[slot & (SLOTS - 1)];
    __be16 type = skb->protocol;
    __u16 tag = skb->vlan_present ? skb->vlan_tci : 0;

    if (!end || !end->address || !(row->mac[0] | row->mac[1] | row->mac[2] | row->mac[3] | row->mac[4] | row->mac[5]))
        return drop(c, DROPPED_LOST);
    if (UNLIKELY(skb->vlan_present))
        inner += TAG_BYTES;
    if (UNLIKELY(longest_part(skb) + inner - ETH_BYTES > end->frame_limit))
        return too_big(skb, c, end, from);
    struct uplink *uplink = &w->uplinks[end->uplink & (UPLINKS - 1)];
    struct uplink_counts *uc = &c->uplinks[end->uplink & (UPLINKS - 1)];
    if (UNLIKELY(!uplink->is_up)) {
        uc->dropped++;
        return drop(c, DROPPED_UPLINK_DOWN);
    }
    __u32 port = tunnel_hash(skb) | 0xc000;
    if (UNLIKELY(inner > ETH_BYTES) && bpf_skb_vlan_pop(skb))
        return drop(c, DROPPED_LOST);
    if (bpf_skb_adjust_room(skb, OUTER_BYTES + inner, ADJ_ROOM_MAC,
                            F_ADJ_FIXED_GSO | F_ADJ_ENCAP_IPV4 | F_ADJ_ENCAP_UDP | F_ADJ_ENCAP_ETH |
                                F_ADJ_ENCAP_L2(inner)) ||
        !is_readable(skb, sizeof(struct outer) + ETH_BYTES + TAG_BYTES))
        return drop(c, DROPPED_LOST);
    struct outer *out = (void *)(long)skb->data;
    struct eth *eth = (void *)(out + 1);
    if ((void *)(eth + 1) + TAG_BYTES > (void *)(long)skb->data_end)
        return drop(c, DROPPED_LOST);
    COPY(eth->dst, out->eth.dst, 6);
    COPY(eth->src, out->eth.src, 6);
    if (UNLIKELY(inner > ETH_BYTES)) {
        __be16 *words = (void *)(eth + 1);
        eth->type = BE16(ETH_TAG);
        words[0] = BE16(tag);
        words[1] = type;
    } else {
        eth->type = type;
    }
    __u16 total = skb->len - ETH_BYTES;
    COPY(out->eth.dst, row->mac, 6);
    COPY(out->eth.src, uplink->mac, 6);
    out->eth.type = BE16(ETH_IP);
    out->ip.version_ihl = 0x45;
    out->ip.tos = 0;
    out->ip.total = BE16(total);
    out->ip.id = 0;
    out->ip.fragment = BE16(0x4000);
    out->ip.ttl = 64;
    out->ip.protocol = PROTO_UDP;
    out->ip.checksum = 0;
    COPY(out->ip.src, &end->address, 4);
    COPY(out->ip.dst, &row->own4, 4);
    out->ip.checksum = ~header_sum(&out->ip);
    out->ports[0] = BE16(port);
    out->ports[1] = BE16(VXLAN_PORT);
    out->udp_len = BE16((__u16)(total - 20));
    out->udp_sum = 0;
    __builtin_memset(out->flags, 0, 4);
    out->flags[0] = 8;
    __be32 network = BE32(end->network << 8);
    COPY(out->network, &network, 4);
    sc->to_packets++;
    sc->to_bytes += bytes;
    uc->sent_packets++;
    uc->sent_bytes += skb->len;
    return bpf_redirect(uplink->ifindex, 0);
}

INLINE int refused(struct __sk_buff *skb, struct counts *c, __u32 at, __u32 reason)
{
    return lost(c, at, skb->len, reason);
}

// What is left of a packet when `more` bytes of outer headers are off: the frame that was inside, with this machine's MAC
// address as its destination, as if it had come without a tunnel.
INLINE int opened(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at, const struct eth *inner, __u16 tag,
                  int is_tagged)
{
    struct eth eth = *inner;
    __s32 less = -(OUTER_BYTES + ETH_BYTES + (is_tagged ? TAG_BYTES : 0));
    int is_of_other_kind = 0;

    COPY(eth.dst, w->uplinks[at & (UPLINKS - 1)].mac, 6);
    if (eth.type == BE16(ETH_IP6)) {
        // Older kernels do not change what kind of packet it is.
        is_of_other_kind = bpf_skb_adjust_room(skb, less, ADJ_ROOM_MAC, F_ADJ_FIXED_GSO | F_ADJ_DECAP_IPV6) != 0;
        if (is_of_other_kind && bpf_skb_adjust_room(skb, less, ADJ_ROOM_MAC, F_ADJ_FIXED_GSO))
            return refused(skb, c, at, DROPPED_TUNNEL);
    } else if (bpf_skb_adjust_room(skb, less, ADJ_ROOM_MAC, F_ADJ_FIXED_GSO)) {
        return refused(skb, c, at, DROPPED_TUNNEL);
    }
    if (bpf_skb_store_bytes(skb, 0, &eth, sizeof eth, 0))
        return refused(skb, c, at, DROPPED_TUNNEL);
    if (is_tagged && bpf_skb_vlan_push(skb, BE16(ETH_TAG), tag))
        return refused(skb, c, at, DROPPED_TUNNEL);
    // It comes in once more, and then it is of the kind that its header says: IPv6, so no packet of a tunnel.
    return is_of_other_kind ? bpf_redirect(w->uplinks[at & (UPLINKS - 1)].ifindex, F_INGRESS) : OPENED;
}

// A UDP packet from the network: takes it out of its tunnel if it is of one that ends here. Gives a verdict, OPENED or
// NO_TUNNEL.
NOINLINE int out_of_tunnel(struct __sk_buff *skb, struct world *w, struct counts *c, __u32 at)
{
    __u32 zero = 0;
    struct tunnel_end *end = bpf_map_lookup_elem(&tunnel_end, &zero);
    struct eth inner;
    __be16 words[2] = {};

    if (!end || !end->receives || end->uplink != at || !is_readable(skb, ETH_BYTES + sizeof(struct ip4)))
        return NO_TUNNEL;
    struct outer *out = (void *)(long)skb->data;
    if ((void *)(&out->ip + 1) > (void *)(long)skb->data_end)
        return NO_TUNNEL;
    __be32 to, from;
    COPY(&to, out->ip.dst, 4);
    if (out->ip.protocol != PROTO_UDP || to != end->address)
        return NO_TUNNEL;
    // Nobody here puts fragments together, whatever they belong to.
    if ((out->ip.fragment & BE16(0x3fff)) || out->ip.version_ihl != 0x45)
        return refused(skb, c, at, DROPPED_TUNNEL);
    if (!is_readable(skb, sizeof *out))
        return refused(skb, c, at, DROPPED_TUNNEL);
    out = (void *)(long)skb->data;
    if ((void *)(out + 1) > (void *)(long)skb->data_end)
        return refused(skb, c, at, DROPPED_TUNNEL);
    if (out->ports[1] != BE16(VXLAN_PORT))
        return NO_TUNNEL;
    __be32 network;
    COPY(&from, out->ip.src, 4);
    COPY(&network, out->network, 4);
    // Where the kernel has not divided the packet, it may be longer than its header can say.
    __u16 total = BE16(out->ip.total), len = skb->len - ETH_BYTES;
    int is_whole = skb->gso_size ? total == len : total + ETH_BYTES <= skb->len;
    if (!is_whole || (__u16)(total - 20) != BE16(out->udp_len) || header_sum(&out->ip) != 0xffff ||
        !(out->flags[0] & 8) || BE32(network) >> 8 != end->network)
        return refused(skb, c, at, DROPPED_TUNNEL);
    if (!skb->gso_size && total < OUTER_BYTES + ETH_BYTES)
        return refused(skb, c, at, DROPPED_TUNNEL);
    struct far_end *far = bpf_map_lookup_elem(&far_ends, &from);
    if (!far || !far->may_send || bpf_skb_load_bytes(skb, sizeof *out, &inner, sizeof inner))
        return refused(skb, c, at, DROPPED_TUNNEL);
    int is_tagged = inner.type == BE16(ETH_TAG);
    if (is_tagged) {
        if (bpf_skb_load_bytes(skb, sizeof *out + ETH_BYTES, words, 4))
            return refused(skb, c, at, DROPPED_TUNNEL);
        inner.type = words[1];
    }
    // What follows the datagram is no part of it.
    if (!skb->gso_size && total + ETH_BYTES < skb->len && bpf_skb_change_tail(skb, total + ETH_BYTES, 0))
        return refused(skb, c, at, DROPPED_TUNNEL);
    if (inner.type != BE16(ETH_IP) && inner.type != BE16(ETH_IP6))
        return refused(skb, c, at, DROPPED_OTHER);
    return opened(skb, w, c, at, &inner, BE16(words[0]), is_tagged);
}

// A message of ARP: notes the MAC address of a machine that was asked for it. Others may read the message, too.
NOINLINE void hear_machine(struct __sk_buff *skb, __u32 at)
{
    // From its kind of hardware on to the asked address.
    struct {
        __u8 head[8];
        __u8 mac[6];
        __u8 sender[4];
        __u8 target_mac[6];
        __u8 target[4];
    } arp;
    __u32 zero = 0;
    struct tunnel_end *end = bpf_map_lookup_elem(&tunnel_end, &zero);
    __be32 from, to;

    if (!end || !end->address || end->uplink != at || bpf_skb_load_bytes(skb, ETH_BYTES, &arp, sizeof arp))
        return;
    COPY(&from, arp.sender, 4);
    COPY(&to, arp.target, 4);
    __u64 head;
    COPY(&head, arp.head, 8);
    // A reply for Ethernet and IPv4. A group or nobody has no packets of its own.
    if (head != __builtin_bswap64(0x0001080006040002ULL) || to != end->address || (arp.mac[0] & 1) ||
        !(arp.mac[0] | arp.mac[1] | arp.mac[2] | arp.mac[3] | arp.mac[4] | arp.mac[5]))
        return;
    struct far_end *far = bpf_map_lookup_elem(&far_ends, &from);
    if (!far)
        return;
    COPY(far->mac, arp.mac, 6);
    *(volatile __u64 *)&far->heard_at = bpf_ktime_get_ns();
}
