// Signals of instances: one in a while goes to inco, which looks at it, and none goes anywhere else.
#pragma once
#include "layout.h"

enum {
    ETH_WAKE = 0x7777,
    ETH_SLEEP = 0x8888,
    SIGNAL_BYTES = 60,
    SIGNAL_INTERVAL = 1000000, // ns between two of an instance
};

// A frame as inco reads it. One that is shorter has no bytes here.
struct signal {
    __u32 slot;
    __u32 len;
    __u8 bytes[SIGNAL_BYTES];
};

// Each run has its own: what nobody reads is of no use later.
struct {
    UINT(type, MAP_RINGBUF);
    UINT(max_entries, 16384);
} signals SEC(".maps");

// When each instance's last signal went to inco.
struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, SLOTS);
    TYPE(key, __u32);
    TYPE(value, __u64);
} signals_at SEC(".maps");

INLINE int is_signal(const struct __sk_buff *skb)
{
    return skb->protocol == BE16(ETH_WAKE) || skb->protocol == BE16(ETH_SLEEP);
}

// Gives the reason for which it is dropped.
NOINLINE __u32 take_signal(struct __sk_buff *skb, __u32 slot)
{
    struct signal s = {.slot = slot, .len = skb->len};
    __u64 now = bpf_ktime_get_ns();
    __u64 *last = bpf_map_lookup_elem(&signals_at, &slot);
    if (!last || now - *last < SIGNAL_INTERVAL)
        return DROPPED_SIGNAL_RATE;
    *last = now;
    // One that is cut off keeps its length, by which it is refused.
    bpf_skb_load_bytes(skb, 0, s.bytes, SIGNAL_BYTES);
    if (bpf_ringbuf_output(&signals, &s, sizeof(s), RB_NO_WAKEUP))
        return DROPPED_SIGNAL_RATE;
    return DROPPED_SIGNAL;
}
