// What the programs and inco share: one value that inco writes and the programs read, counters that each CPU writes
// alone, and the flow tables. `src/layout.rs` has the same structures; LAYOUT changes with any of them.
#pragma once
#include "kernel.h"

enum {
#ifdef OLDER_LAYOUT // another one, for tests: see tests/driver/layouts.rs
    LAYOUT = 3,
#else
    LAYOUT = 4,
#endif
    SLOTS = 1024,
    SERVICES = 64,
    UPLINKS = 8,
    RULES = 256,  // of one plan
    BANKS = 4,    // plans whose rules a program may still be reading
    PICKS = 1024, // prepared picks of a service
    ENTRIES = 4096, // of a table by hash
    RSS_ENTRIES = 128, // of a table as cards have it
    EPOCHS = 4,   // whose flows are counted apart
};

// The state of a slot.
enum { SLOT_FREE = 0, SLOT_ACTIVE = 1, SLOT_SERVING = 2, SLOT_FAILED = 3 };
// Flags of a slot.
enum { SLOT_EGRESS = 1, SLOT_DNAT = 2, SLOT_ROUTED = 4, SLOT_TUNNEL = 8 };
// How a service picks.
enum { PICK_PREPARED = 0, PICK_BY_FLOW = 1, PICK_BY_SOURCE = 2, PICK_BY_RSS = 3, PICK_BY_RSS_WITHOUT_PORTS = 4 };
// What flows have in common that share an instance: all of their key, both addresses, the client's address.
enum { SHARED_BY_FLOW = 0, SHARED_BY_ADDRESSES = 1, SHARED_BY_SOURCE = 2 };
// What happens to packets of no service.
enum { TO_HOST = 0, DROP = 1, PASS = 2 };
// TCP states, as in inco's flow table.
enum { TCP_NONE = 0, TCP_HANDSHAKE = 1, TCP_ESTABLISHED = 2, TCP_FIN_FORWARD = 3, TCP_FIN_REVERSE = 4, TCP_CLOSED = 5 };
// Reasons of drops, in the order of inco's counters.
enum {
    DROPPED_MALFORMED = 0,
    DROPPED_HEADER_LIMIT = 1,
    DROPPED_FRAGMENT = 2,
    DROPPED_UNMATCHED = 3,
    DROPPED_OTHER = 4,
    DROPPED_TABLE_FULL = 5,
    DROPPED_NO_INSTANCE = 6,
    DROPPED_SPOOFED = 7,
    DROPPED_UPLINK_DOWN = 8,
    DROPPED_LOST = 9,
    DROPPED_SIGNAL = 10,
    DROPPED_SIGNAL_RATE = 11,
    DROPPED_TUNNEL = 12,
    DROPPED_TOO_LARGE = 13,
    REASONS = 16,
};

struct slot {
    __u32 epoch; // pins of other epochs are invalid
    __u8 state;
    __u8 flags;
    __u16 service;
    __u32 ifindex; // the host's end of its pair; where others run it, the interface by which it is reached
    __u8 mac[6];   // of the instance's end
    // Where addresses are translated, ports are, too, unless both are 0.
    __u16 port;
    __u16 target_port;
    __u16 zero;
    __be32 vip4;
    __be32 own4;
    __u64 vip6[2];
    __u64 own6[2];
};

struct service {
    __u32 by; // how it picks
    __u32 drops_when_full;
    __u32 actives; // how many of `active`
    __u32 vlan;
    __u32 uplink; // by which connections that instances open leave
    __u32 filled; // picks[taken..filled] are prepared
    __u32 shared_by;
    __s32 half_open_limit;
    __u32 refill_at; // the pick that wakes inco up, because half of what was prepared is used
    __u32 zero[7];
    __u32 taken;
    __s32 half_open; // connections that are opened and not acknowledged yet
    __u32 more_zero[14];
    __u16 picks[PICKS];
    __u16 table[ENTRIES];
    __u16 active[SLOTS];
};

struct rule {
    __u64 src[2];
    __u64 src_mask[2];
    __u64 dst[2];
    __u64 dst_mask[2];
    __u16 src_port[2]; // first and last
    __u16 dst_port[2];
    __u16 service;
    __u16 vlan;
    __u8 protocol; // 0: any
    __u8 family;   // 0: any, else 4 or 6
    __u8 uplinks;  // a bit each
    __u8 zero;
};

struct uplink {
    __u32 ifindex;
    __u8 mac[6];
    __u8 is_peer; // its other end is in another network namespace: replies go straight there
    __u8 is_up;
    __u32 unmatched_to; // interface for packets of no service that are passed
    __u32 other_to;
};

// The first two words have their place in every layout: another release reads and writes them.
struct settings {
    __u64 layout;
    __u64 by_hash; // another release takes over: new flows are picked by their hash, and valid pins stay
    __u64 generation;
    __u64 hash_key[2];
    __u64 timeouts[8]; // tcp_handshake, tcp, tcp_linger, udp, sctp, icmp, other
    __u32 rules;       // the bank in the upper half, how many of it in the lower one
    __u32 more_zero;
    __u32 unmatched;
    __u32 other;
    __u8 gateway_mac[6];
    __u8 zero[2];
    __u32 sweep_row; // of the counters, where the sweep counts: packets interrupt it
    __u32 back_ends; // how many there are
    __u64 shared_ns; // how long flows share an instance after the last of them was seen to begin or to go on
    __u64 zeros[6];
};

// The order in which the flows of a table are looked at: whether they are over. Each has one place in it. One that is
// not over gets a new place at the end. A walk takes time for the flows that there are, not for those that there
// could be, and can be made in steps.
struct order {
    __u64 head; // the next place to be given
    __u64 tail; // the next one to be looked at
    __u32 places;
    __u32 is_walked;
    __u64 walk_after; // programs do not walk in the path of packets before that
    __u64 zero[4];
};

struct world {
    struct settings settings;
    struct order order[2]; // IPv4, IPv6
    struct uplink uplinks[UPLINKS];
    struct slot slots[SLOTS];
    struct rule rules[BANKS][RULES];
    struct service services[SERVICES];
};

struct slot_counts {
    __u64 to_packets;
    __u64 to_bytes;
    __u64 back_packets;
    __u64 back_bytes;
    __u64 new_flows;
    __u64 expected_moves;
    __u64 opened; // flows that the instance began
    __u64 spoofed;
    __u64 started[EPOCHS];
    __u64 ended[EPOCHS];
};

struct service_counts {
    __u64 offered_packets;
    __u64 offered_bytes;
    __u64 unserved;
    __u64 unpinned;
    __u64 ran_out; // new flows for which no pick was prepared
    __u64 recovered;
    __u64 skipped; // prepared picks of instances that take no flows any more
    __u64 flooded; // SYN packets that were sent on without a pin
};

struct uplink_counts {
    __u64 received_packets;
    __u64 received_bytes;
    __u64 sent_packets;
    __u64 sent_bytes;
    __u64 dropped;
    __u64 to_host;
    __u64 answered; // ARP, neighbour solicitations, pings
    __u64 passed;
};

// The keys are `model::FlowKeyV4` and `FlowKeyV6`: the lower end first, ports in the machine's order.
struct key4 {
    __u8 a[4];
    __u8 b[4];
    __u16 a_port;
    __u16 b_port;
    __u16 vlan;
    __u8 protocol;
    __u8 zero;
};

struct key6 {
    __u8 a[16];
    __u8 b[16];
    __u16 a_port;
    __u16 b_port;
    __u16 vlan;
    __u8 protocol;
    __u8 zero;
};

struct flow {
#ifdef OLDER_LAYOUT
    __u64 place;
    __u64 bytes[2];
    __u64 spare;
    __u64 packets[2];
    __u64 outside;
    __u64 seen;
    __u64 pinned_at;
    __u64 pin;
#else
    __u64 pin; // slot, service, tag, epoch: see PIN
    __u64 seen;
    __u64 packets[2]; // by direction of the key
    __u64 bytes[2];
    __u64 pinned_at;
    __u64 outside; // the MAC address towards the client, and the uplink in the upper two bytes
    __u64 place;   // in the order
#endif
    __u8 opener;   // the direction of the first packet
    __u8 inside;   // the direction of packets that come from the instance
    __u16 zero;
    __u32 tcp;     // its state
};

// What inco is told at once. If it does not read, the oldest stay, and later ones are counted as lost.
enum { EVENT_ALARM = 1 };

struct event {
    __u32 kind;
    __u32 zero;
};

// What one CPU counts, or the sweep. It alone writes here.
struct counts {
    __u64 drops[REASONS];
    __u64 table_full;
    __u64 started[2]; // entries by table: IPv4, IPv6
    __u64 ended[2];
    __u64 moved; // packets from uplinks and from instances
    __u64 mark;  // how many of these wake inco up; set by inco
    __u64 lost_events;
    struct flow fresh; // the entry that this CPU is making
    struct event event; // what it is telling
    __u64 more_zero[15 - sizeof(struct flow) / 8];
    struct uplink_counts uplinks[UPLINKS];
    struct service_counts services[SERVICES];
    struct slot_counts slots[SLOTS];
};

// A pin in one word, so that it changes at once. The tag is a part of the key's hash: an entry that was freed and
// used again between a lookup and the look at its pin does not pass for the one that was looked up.
#define PIN(slot, service, hash, epoch)                                                                              \
    ((__u64)(slot) | (__u64)(service) << 10 | ((hash) >> 48) << 16 | (__u64)(epoch) << 32)
#define PIN_SLOT(pin) ((__u32)(pin) & (SLOTS - 1))
#define PIN_SERVICE(pin) ((__u32)(pin) >> 10 & (SERVICES - 1))
#define PIN_TAG(pin) ((__u16)((pin) >> 16))
#define PIN_EPOCH(pin) ((__u32)((pin) >> 32))

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 1);
    UINT(map_flags, F_MMAPABLE);
    TYPE(key, __u32);
    TYPE(value, struct world);
} world SEC(".maps");

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 3); // one for each CPU, one of the sweep, one of inco; set by inco
    UINT(map_flags, F_MMAPABLE);
    TYPE(key, __u32);
    TYPE(value, struct counts);
} counts SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, 1024); // set by inco, as are those below
    TYPE(key, struct key4);
    TYPE(value, struct flow);
} flows_v4 SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, 1024);
    TYPE(key, struct key6);
    TYPE(value, struct flow);
} flows_v6 SEC(".maps");

// A place in the order. `number` is written last: that of the place, plus one.
struct place4 {
    struct key4 key;
    __u64 number;
};

struct place6 {
    struct key6 key;
    __u64 number;
};

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 1024);
    TYPE(key, __u32);
    TYPE(value, struct place4);
} order_v4 SEC(".maps");

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 1024);
    TYPE(key, __u32);
    TYPE(value, struct place6);
} order_v6 SEC(".maps");

struct {
    UINT(type, MAP_RINGBUF);
    UINT(max_entries, 1 << 16); // bytes
} events SEC(".maps");

INLINE struct world *the_world(void)
{
    __u32 zero = 0;
    return bpf_map_lookup_elem(&world, &zero);
}

INLINE struct counts *counts_of_this_cpu(void)
{
    __u32 cpu = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(&counts, &cpu);
}

// The addresses that are answered for: IPv4 in mapped form. The value has a bit for each uplink.
struct address {
    __u64 part[2];
};

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, 4096);
    TYPE(key, struct address);
    TYPE(value, __u32);
} addresses SEC(".maps");

// Where others run an instance: its address and port, and its slot plus one.
struct back_end {
    struct address address;
    __u16 port;
    __u16 zero[3];
};

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, SLOTS);
    TYPE(key, struct back_end);
    TYPE(value, __u32);
} back_ends SEC(".maps");

// The pins of what flows have in common, where that is not all of their key. The least recently used make room.
struct shared {
    struct address client;
    struct address server; // zero, if the client's address is all
    __u16 service;
    __u16 zero[3];
};

struct shared_pin {
    __u64 pin;
    __u64 seen;
};

struct {
    UINT(type, MAP_LRU_HASH);
    UINT(max_entries, 1024); // set by inco
    TYPE(key, struct shared);
    TYPE(value, struct shared_pin);
} shared_pins SEC(".maps");

// The neighbours, as in an entry's `outside`, from which packets came that have no entry.
struct {
    UINT(type, MAP_LRU_HASH);
    UINT(max_entries, 16384);
    TYPE(key, struct address);
    TYPE(value, __u64);
} neighbours SEC(".maps");

// The ports of datagrams whose first fragment has been seen.
struct fragment {
    struct address src;
    struct address dst;
    __u32 id;
    __u16 within; // the VLAN; in `own_fragments`, the slot
    __u8 protocol;
    __u8 zero;
};

struct fragment_ports {
    __u64 seen;
    __u16 src;
    __u16 dst;
    __u32 zero;
};

struct {
    UINT(type, MAP_LRU_HASH);
    UINT(max_entries, 4096);
    TYPE(key, struct fragment);
    TYPE(value, struct fragment_ports);
} fragments SEC(".maps");

// The same of datagrams that instances send. No instance may change what is known of another one's, or of a client's.
struct {
    UINT(type, MAP_LRU_HASH);
    UINT(max_entries, 4096);
    TYPE(key, struct fragment);
    TYPE(value, struct fragment_ports);
} own_fragments SEC(".maps");
