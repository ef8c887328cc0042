// Frames to flow keys. Everything here comes from the network or from a container: hostile.
#pragma once
#include "layout.h"

enum {
    ETH_BYTES = 14,
    ETH_IP = 0x0800,
    ETH_ARP = 0x0806,
    ETH_IP6 = 0x86dd,
    PROTO_ICMP = 1,
    PROTO_TCP = 6,
    PROTO_UDP = 17,
    PROTO_ICMP6 = 58,
    PROTO_SCTP = 132,
    // From here on, ICMPv6 discovers routers and neighbours. That is the link's matter, and nobody's flow: an instance
    // would speak for another address.
    ICMP6_DISCOVERY = 133,
    ICMP6_REDIRECT = 137,
    FIN = 1,
    SYN = 2,
    RST = 4,
    ACK = 16,
    // IPv6 extension headers of a packet at most.
    EXTENSIONS = 8,
    // The longest header chain that is read at once.
    READABLE = ETH_BYTES + 60 + 20,
};

struct eth {
    __u8 dst[6];
    __u8 src[6];
    __be16 type;
};

struct ip4 {
    __u8 version_ihl;
    __u8 tos;
    __be16 total;
    __be16 id;
    __be16 fragment;
    __u8 ttl;
    __u8 protocol;
    __u16 checksum;
    __u8 src[4];
    __u8 dst[4];
};

struct ip6 {
    __u8 version[4];
    __be16 payload;
    __u8 next;
    __u8 hops;
    __u8 src[16];
    __u8 dst[16];
};

// What a packet is, beside its key.
struct packet {
    __u8 direction; // 0: the source is the key's lower end
    __u8 tcp_flags;
    __u8 is_error; // an ICMP error: the key is that of the packet that it quotes, turned around
    __u8 drop;     // 1 + the reason, if it cannot be steered
    __u8 has_l4;   // the header after the IP header is there: it is no later fragment
    __u16 from;    // who sent it, said before it is read: 0 the network, or the slot plus one
    __u32 l4_at;   // where that header begins; of the quoted packet, if it is an error
    __u32 ip_at;   // where the IP header begins that the key is of
    __u32 icmp_at; // where an error's own header begins
};

// Whether that many bytes can be read directly. The first `bytes` of a packet are copied together if need be.
INLINE int is_readable(struct __sk_buff *skb, __u32 bytes)
{
    if (LIKELY((void *)(long)skb->data + bytes <= (void *)(long)skb->data_end))
        return 1;
    if (skb->len < bytes || bpf_skb_pull_data(skb, skb->len < READABLE ? skb->len : READABLE))
        return 0;
    return (void *)(long)skb->data + bytes <= (void *)(long)skb->data_end;
}

INLINE __u16 vlan_of(struct __sk_buff *skb)
{
    return skb->vlan_present ? skb->vlan_tci & 0xfff : 0;
}

INLINE void mapped(struct address *to, const __u8 *v4)
{
    to->part[0] = 0;
    COPY(&to->part[1], "\0\0\xff\xff", 4);
    COPY((char *)&to->part[1] + 4, v4, 4);
}

INLINE __u64 mix(__u64 x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    return x ^ x >> 32;
}

INLINE __u64 mix_public(__u64 n)
{
    n += 0x9e3779b97f4a7c15ULL;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9ULL;
    n = (n ^ n >> 27) * 0x94d049bb133111ebULL;
    return n ^ n >> 31;
}

INLINE __u64 hash4(const struct world *w, const struct key4 *key)
{
    const __u64 *words = (const __u64 *)key;
    return mix((words[0] ^ w->settings.hash_key[0]) * 0x9e3779b97f4a7c15ULL ^ words[1] ^ w->settings.hash_key[1]);
}

INLINE __u64 hash6(const struct world *w, const struct key6 *key)
{
    const __u64 *words = (const __u64 *)key;
    __u64 x = w->settings.hash_key[0];
    x = mix(x ^ words[0] ^ words[1] * 0x9e3779b97f4a7c15ULL);
    x = mix(x ^ words[2] ^ words[3] * 0x9e3779b97f4a7c15ULL);
    return mix(x ^ words[4] ^ w->settings.hash_key[1]);
}

// Puts the lower end first. Gives the direction.
INLINE __u8 order4(struct key4 *key, __u32 src, __u32 dst, __u16 src_port, __u16 dst_port)
{
    __u32 a = BE32(src), b = BE32(dst);
    __u8 swap = a > b || (a == b && src_port > dst_port);
    COPY(key->a, swap ? &dst : &src, 4);
    COPY(key->b, swap ? &src : &dst, 4);
    key->a_port = swap ? dst_port : src_port;
    key->b_port = swap ? src_port : dst_port;
    return swap;
}

INLINE __u8 order6(struct key6 *key, const __u64 *src, const __u64 *dst, __u16 src_port, __u16 dst_port)
{
    __u64 a0 = __builtin_bswap64(src[0]), b0 = __builtin_bswap64(dst[0]);
    __u64 a1 = __builtin_bswap64(src[1]), b1 = __builtin_bswap64(dst[1]);
    __u8 swap = a0 > b0 || (a0 == b0 && (a1 > b1 || (a1 == b1 && src_port > dst_port)));
    __u64 *low = (__u64 *)key->a, *high = (__u64 *)key->b;
    low[0] = swap ? dst[0] : src[0];
    low[1] = swap ? dst[1] : src[1];
    high[0] = swap ? src[0] : dst[0];
    high[1] = swap ? src[1] : dst[1];
    key->a_port = swap ? dst_port : src_port;
    key->b_port = swap ? src_port : dst_port;
    return swap;
}

INLINE int has_ports(__u8 protocol)
{
    return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_SCTP;
}

// How long the ports of a fragmented datagram are known: as long as Linux keeps fragments.
#define FRAGMENT_NS 30000000000ULL

// Ports of a datagram in fragments: those of the first are noted, and read for the others. Gives 0 where the first
// has not come. `from`: who sent it, as a packet has it.
NOINLINE int fragment_ports(struct fragment *of, struct fragment_ports *ports, int is_first, __u32 from)
{
    __u64 now = bpf_ktime_get_coarse_ns();
    struct fragment_ports *known;
    if (from)
        of->within = from - 1;
    if (is_first) {
        ports->seen = now;
        if (from)
            bpf_map_update_elem(&own_fragments, of, ports, BPF_ANY);
        else
            bpf_map_update_elem(&fragments, of, ports, BPF_ANY);
        return 1;
    }
    if (from)
        known = bpf_map_lookup_elem(&own_fragments, of);
    else
        known = bpf_map_lookup_elem(&fragments, of);
    if (!known || now - known->seen > FRAGMENT_NS)
        return 0;
    ports->src = known->src;
    ports->dst = known->dst;
    return 1;
}

// The ports that follow at `at`, and TCP's flags. Gives 0 where the header is cut off.
INLINE int load_ports(struct __sk_buff *skb, __u32 at, __u8 protocol, struct packet *p, __u16 *src, __u16 *dst)
{
    __be16 ports[2];
    if (bpf_skb_load_bytes(skb, at, ports, 4))
        return 0;
    *src = BE16(ports[0]);
    *dst = BE16(ports[1]);
    if (protocol == PROTO_TCP && !p->is_error && bpf_skb_load_bytes(skb, at + 13, &p->tcp_flags, 1))
        return 0;
    return 1;
}

// An IPv4 packet with options, a fragment, or an ICMP message: what the fast path leaves out.
CHECKED_ALONE int parse4_slowly(struct __sk_buff *skb, struct key4 *key, struct packet *p)
{
    struct ip4 ip;
    __u32 at = ETH_BYTES;
    __u32 src, dst;
    __u16 src_port = 0, dst_port = 0;

    if (!key || !p)
        return 0;
    p->is_error = 0;
    p->tcp_flags = 0;
    p->drop = 1 + DROPPED_MALFORMED;
    p->ip_at = at;
    if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip) || (ip.version_ihl >> 4) != 4 || (ip.version_ihl & 15) < 5)
        return 0;
    if (ip.protocol == PROTO_ICMP && !(ip.fragment & BE16(0x1fff))) {
        __u8 icmp[8];
        __u32 header = at + (ip.version_ihl & 15) * 4;
        if (bpf_skb_load_bytes(skb, header, icmp, sizeof icmp))
            return 0;
        if (icmp[0] == 3 || icmp[0] == 4 || icmp[0] == 5 || icmp[0] == 11 || icmp[0] == 12) {
            // The quoted packet went the other way.
            at = header + 8;
            if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip) || (ip.version_ihl >> 4) != 4 ||
                (ip.version_ihl & 15) < 5)
                return 0;
            p->is_error = 1;
            p->icmp_at = header;
            p->ip_at = at;
        } else if (icmp[0] == 0 || icmp[0] == 8) {
            src_port = dst_port = icmp[4] << 8 | icmp[5];
        }
    }
    at += (ip.version_ihl & 15) * 4;
    p->l4_at = at;
    key->vlan = vlan_of(skb);
    key->protocol = ip.protocol;
    COPY(&src, ip.src, 4);
    COPY(&dst, ip.dst, 4);
    int is_first = !(ip.fragment & BE16(0x1fff));
    p->has_l4 = is_first;
    if (has_ports(ip.protocol)) {
        if (is_first && !load_ports(skb, at, ip.protocol, p, &src_port, &dst_port))
            return 0;
        if ((ip.fragment & BE16(0x3fff)) && !p->is_error) {
            struct fragment of = {.id = ip.id, .within = key->vlan, .protocol = ip.protocol};
            struct fragment_ports ports = {.src = src_port, .dst = dst_port};
            mapped(&of.src, ip.src);
            mapped(&of.dst, ip.dst);
            if (!fragment_ports(&of, &ports, is_first, p->from)) {
                p->drop = 1 + DROPPED_FRAGMENT;
                return 0;
            }
            src_port = ports.src;
            dst_port = ports.dst;
        }
    } else if (p->is_error && ip.protocol == PROTO_ICMP) {
        __u8 icmp[8];
        if (bpf_skb_load_bytes(skb, at, icmp, sizeof icmp))
            return 0;
        src_port = dst_port = icmp[4] << 8 | icmp[5];
    }
    p->drop = 0;
    p->direction = order4(key, src, dst, src_port, dst_port);
    if (p->is_error)
        p->direction ^= 1;
    return 1;
}

// An IPv6 packet from `at` on: goes over extension headers. Gives the protocol, or 256 + a reason to drop it.
NOINLINE int skip_extensions(struct __sk_buff *skb, __u32 at, struct ip6 *ip, struct fragment_ports *fragment,
                             struct packet *p)
{
    __u8 next = ip->next;
    at += sizeof *ip;
    for (int i = 0; i <= EXTENSIONS; i++) {
        __u8 header[8];
        // Hop-by-hop, routing, destination options, authentication, fragment.
        if (next != 0 && next != 43 && next != 60 && next != 51 && next != 44) {
            p->l4_at = at;
            return next;
        }
        if (bpf_skb_load_bytes(skb, at, header, sizeof header))
            return 256 + DROPPED_MALFORMED;
        if (next == 44) {
            __be16 offset;
            COPY(&offset, header + 2, 2);
            COPY(&fragment->zero, header + 4, 4);
            // Its place in the datagram: 1 the first of several, 2 a later one.
            fragment->src = BE16(offset) & 0xfff8 ? 2 : BE16(offset) & 1;
            at += 8;
        } else if (next == 51) {
            at += (header[1] + 2) * 4;
        } else {
            at += (header[1] + 1) * 8;
        }
        next = header[0];
        if (fragment->src == 2) {
            p->l4_at = at;
            return next;
        }
    }
    return 256 + DROPPED_HEADER_LIMIT;
}

// An IPv6 packet with extension headers, a fragment, or an ICMP message.
CHECKED_ALONE int parse6_slowly(struct __sk_buff *skb, struct key6 *key, struct packet *p)
{
    struct ip6 ip;
    struct fragment_ports place = {};
    __u32 at = ETH_BYTES;
    __u16 src_port = 0, dst_port = 0;
    __u8 icmp[8];

    if (!key || !p)
        return 0;
    p->is_error = 0;
    p->tcp_flags = 0;
    p->drop = 1 + DROPPED_MALFORMED;
    p->ip_at = at;
    if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip) || (ip.version[0] >> 4) != 6)
        return 0;
    int protocol = skip_extensions(skb, at, &ip, &place, p);
    if (protocol == PROTO_ICMP6 && place.src != 2) {
        if (bpf_skb_load_bytes(skb, p->l4_at, icmp, sizeof icmp))
            return 0;
        if (icmp[0] >= 1 && icmp[0] <= 4) {
            p->icmp_at = p->l4_at;
            at = p->l4_at + 8;
            if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip) || (ip.version[0] >> 4) != 6)
                return 0;
            p->is_error = 1;
            p->ip_at = at;
            place.src = 0;
            protocol = skip_extensions(skb, at, &ip, &place, p);
            if (protocol == PROTO_ICMP6) {
                if (bpf_skb_load_bytes(skb, p->l4_at, icmp, sizeof icmp))
                    return 0;
                src_port = dst_port = icmp[4] << 8 | icmp[5];
            }
        } else if (icmp[0] == 128 || icmp[0] == 129) {
            src_port = dst_port = icmp[4] << 8 | icmp[5];
        } else if (icmp[0] >= ICMP6_DISCOVERY && icmp[0] <= ICMP6_REDIRECT) {
            p->drop = 1 + DROPPED_OTHER;
            return 0;
        }
    }
    if (protocol >= 256) {
        p->drop = 1 + protocol - 256;
        return 0;
    }
    key->vlan = vlan_of(skb);
    key->protocol = protocol;
    p->has_l4 = place.src != 2;
    if (has_ports(protocol)) {
        if (place.src != 2 && !load_ports(skb, p->l4_at, protocol, p, &src_port, &dst_port))
            return 0;
        if (place.src && !p->is_error) {
            struct fragment of = {.id = place.zero, .within = key->vlan, .protocol = protocol};
            struct fragment_ports ports = {.src = src_port, .dst = dst_port};
            COPY(&of.src, ip.src, 16);
            COPY(&of.dst, ip.dst, 16);
            if (!fragment_ports(&of, &ports, place.src == 1, p->from)) {
                p->drop = 1 + DROPPED_FRAGMENT;
                return 0;
            }
            src_port = ports.src;
            dst_port = ports.dst;
        }
    }
    p->drop = 0;
    p->direction = order6(key, (__u64 *)ip.src, (__u64 *)ip.dst, src_port, dst_port);
    if (p->is_error)
        p->direction ^= 1;
    return 1;
}

// The key of an IPv4 packet.
INLINE int parse4(struct __sk_buff *skb, struct key4 *key, struct packet *p)
{
    if (LIKELY(is_readable(skb, ETH_BYTES + 28))) {
        void *end = (void *)(long)skb->data_end;
        struct ip4 *ip = (void *)(long)skb->data + ETH_BYTES;
        __u8 *l4 = (void *)(ip + 1);
        if ((void *)(l4 + 8) <= end && ip->version_ihl == 0x45 && !(ip->fragment & BE16(0x3fff)) &&
            (ip->protocol == PROTO_TCP || ip->protocol == PROTO_UDP)) {
            p->is_error = 0;
            p->drop = 0;
            p->tcp_flags = 0;
            p->has_l4 = 1;
            p->l4_at = ETH_BYTES + sizeof *ip;
            key->vlan = vlan_of(skb);
            key->protocol = ip->protocol;
            if (ip->protocol == PROTO_TCP) {
                if ((void *)(l4 + 20) > end)
                    return parse4_slowly(skb, key, p);
                p->tcp_flags = l4[13];
            }
            p->direction = order4(key, *(__u32 *)ip->src, *(__u32 *)ip->dst, BE16(*(__be16 *)l4),
                                  BE16(*(__be16 *)(l4 + 2)));
            return 1;
        }
    }
    return parse4_slowly(skb, key, p);
}

// The key of an IPv6 packet.
INLINE int parse6(struct __sk_buff *skb, struct key6 *key, struct packet *p)
{
    if (LIKELY(is_readable(skb, ETH_BYTES + 48))) {
        void *end = (void *)(long)skb->data_end;
        struct ip6 *ip = (void *)(long)skb->data + ETH_BYTES;
        __u8 *l4 = (void *)(ip + 1);
        if ((void *)(l4 + 8) <= end && (ip->version[0] >> 4) == 6 &&
            (ip->next == PROTO_TCP || ip->next == PROTO_UDP)) {
            __u64 src[2], dst[2];
            p->is_error = 0;
            p->drop = 0;
            p->tcp_flags = 0;
            p->has_l4 = 1;
            p->l4_at = ETH_BYTES + sizeof *ip;
            key->vlan = vlan_of(skb);
            key->protocol = ip->next;
            if (ip->next == PROTO_TCP) {
                if ((void *)(l4 + 20) > end)
                    return parse6_slowly(skb, key, p);
                p->tcp_flags = l4[13];
            }
            COPY(src, ip->src, 16);
            COPY(dst, ip->dst, 16);
            p->direction = order6(key, src, dst, BE16(*(__be16 *)l4), BE16(*(__be16 *)(l4 + 2)));
            return 1;
        }
    }
    return parse6_slowly(skb, key, p);
}
