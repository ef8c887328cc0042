// Health checks: inco asks an instance through a packet socket at the host's end of its interface. The instance
// answers to one of these addresses, which are nobody's. `interfaces::CHECKER_V4` and `_V6` are the same.
#pragma once
#include "forward.h"

#define CHECKER_V4 BE32(0xa9fe0102) // 169.254.1.2
#define CHECKER_V6_PREFIX BE32(0x01000000) // 100::2
#define CHECKER_V6_REST BE32(2)

INLINE int is_checker_v4(struct __sk_buff *skb, __u32 offset)
{
    __be32 address;
    return !bpf_skb_load_bytes(skb, ETH_BYTES + offset, &address, 4) && address == CHECKER_V4;
}

INLINE int is_checker_v6(struct __sk_buff *skb, __u32 offset)
{
    __be32 address[4];
    return !bpf_skb_load_bytes(skb, ETH_BYTES + offset, address, 16) && address[0] == CHECKER_V6_PREFIX &&
           !address[1] && !address[2] && address[3] == CHECKER_V6_REST;
}

INLINE int is_to_checker_v4(struct __sk_buff *skb) { return is_checker_v4(skb, 16); }
INLINE int is_to_checker_v6(struct __sk_buff *skb) { return is_checker_v6(skb, 24); }
INLINE int is_from_checker_v4(struct __sk_buff *skb) { return is_checker_v4(skb, 12); }
INLINE int is_from_checker_v6(struct __sk_buff *skb) { return is_checker_v6(skb, 8); }

// To packet sockets of this interface. The machine's own network drops what is another host's.
INLINE int to_checker(struct __sk_buff *skb, struct slot_counts *sc, __u32 bytes)
{
    // It is no traffic of the service.
    sc->back_packets--;
    sc->back_bytes -= bytes;
    bpf_skb_change_type(skb, PACKET_OTHERHOST);
    return TC_ACT_OK;
}
