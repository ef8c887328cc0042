// Three programs. `inco_ring` is the filter of a worker's packet socket: it sees a packet before tc does, and decides
// whether the fast path takes it. `inco_path` is at the same interface (tc ingress), and follows on the same CPU: it carries
// the decision out, and numbers what was passed up, which is in the ring by then. `inco_marker` is at an uplink's way out
// (tc egress): it sends markers of the worker back in, behind all that this CPU has to receive, and `inco_path` stores
// there what is done. The rules are those of the crate `path-change`.
#include "kernel.h"

enum {
    ENTRANCES = 1040,
    CPUS = 128,
    PASSAGES = 16384,
    PACKET_OUTGOING = 4,
    ETHERNET = 14,
    IPV4 = 0x0800,
    IPV6 = 0x86dd,
    VLAN = 0x8100,
    VLAN_OUTER = 0x88a8,
    MARKER = 0x88b5, // an EtherType for local experiments
    TCP = 6,
    UDP = 17,
    FIRST_EXTENSIONS = 44, // a fragment of IPv6
    FIN_SYN_RST = 7,
    ENOUGH = 0x7fffffff, // bytes that a filter keeps: all
    TO_PEER = 1,   // into the network namespace of the interface's other end
    IS_KNOWN = 2,  // packets that another neighbour sends are passed up
};

// What of the packet in hand the filter tells the program behind it.
enum { NOTHING = 0, PASSES = 1, UNREAD = 2, TAKEN = 3 };

struct key {
    __u32 entrance;
    __u16 vlan;
    __u8 protocol; // 0: no flow that may have an entry
    __u8 version;
    __u8 src[16];
    __u8 dst[16];
    __be16 src_port;
    __be16 dst_port;
};

struct here {
    struct key key;
    __u32 what;
    __u32 passage;
    __u32 header; // bytes of all headers
    __u32 zero[2];
};

struct entrance {
    __u64 passed; // the number of the last packet that was passed up
    __u64 done;
    __u64 unread;
    __u64 zero[5];
    __u64 begun[CPUS];
    __u64 placed[CPUS];
};

struct passage {
    __u64 is_on;
    __u64 floor;
    __u64 last;
    __u64 packets;
    __u64 bytes;
    __u32 ifindex;
    __u32 how;
    __u8 dst[6];
    __u8 src[6];
    __u8 from[6];
    __u16 vlan; // the tag of what leaves; 0: none
    __u8 zero[60];
};

struct settings {
    __u64 until;     // when the fast path ends, unless somebody says that the worker is still there
    __u64 secret[2]; // of markers
    __u64 missed;    // decisions that nobody has carried out
};

struct marker {
    __u64 secret[2];
    __u64 number;
    __u32 entrance;
    __u32 zero;
};

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, ENTRANCES);
    UINT(map_flags, F_MMAPABLE);
    TYPE(key, __u32);
    TYPE(value, struct entrance);
} entrances SEC(".maps");

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, PASSAGES);
    UINT(map_flags, F_MMAPABLE);
    TYPE(key, __u32);
    TYPE(value, struct passage);
} passages SEC(".maps");

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, 1);
    UINT(map_flags, F_MMAPABLE);
    TYPE(key, __u32);
    TYPE(value, struct settings);
} settings SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, PASSAGES);
    TYPE(key, struct key);
    TYPE(value, __u32);
} flows SEC(".maps");

struct {
    UINT(type, MAP_HASH);
    UINT(max_entries, ENTRANCES);
    TYPE(key, __u32);
    TYPE(value, __u32);
} interfaces SEC(".maps");

struct {
    UINT(type, MAP_ARRAY);
    UINT(max_entries, CPUS);
    TYPE(key, __u32);
    TYPE(value, struct here);
} in_hand SEC(".maps");

INLINE struct here *here_now(void)
{
    __u32 cpu = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(&in_hand, &cpu);
}

INLINE struct settings *settings_now(void)
{
    __u32 first = 0;
    return bpf_map_lookup_elem(&settings, &first);
}

// Whether a packet is a marker of the worker.
INLINE int is_marker(const struct __sk_buff *skb, const struct settings *of, struct marker *marker)
{
    __be16 kind;
    return !bpf_skb_load_bytes(skb, ETHERNET - 2, &kind, sizeof kind) && kind == BE16(MARKER) &&
           !bpf_skb_load_bytes(skb, ETHERNET, marker, sizeof *marker) && marker->secret[0] == of->secret[0] &&
           marker->secret[1] == of->secret[1];
}

// The packet's flow. What cannot be told apart by ports may belong to any. What opens or closes a connection has no
// entry's way, but is one of its flow.
INLINE __u32 read_flow(const struct __sk_buff *skb, struct here *here, __u32 *controls)
{
    struct key *key = &here->key;
    struct {
        __be16 src;
        __be16 dst;
    } ports;
    __u8 flags[2];
    __u32 at = ETHERNET;

    if (skb->protocol == BE16(VLAN) || skb->protocol == BE16(VLAN_OUTER))
        return UNREAD;
    if (skb->vlan_present) {
        key->vlan = skb->vlan_tci & 0xfff;
        if (!key->vlan)
            return UNREAD;
    }
    if (skb->protocol == BE16(IPV4)) {
        struct {
            __u8 version;
            __u8 tos;
            __be16 length;
            __be16 id;
            __be16 fragment;
            __u8 ttl;
            __u8 protocol;
            __be16 sum;
            __u8 src[4];
            __u8 dst[4];
        } head;
        if (bpf_skb_load_bytes(skb, at, &head, sizeof head))
            return UNREAD;
        if (head.version != 0x45 || head.fragment & BE16(0x3fff))
            return UNREAD;
        key->version = 4;
        key->protocol = head.protocol;
        COPY(key->src, head.src, 4);
        COPY(key->dst, head.dst, 4);
        at += sizeof head;
    } else if (skb->protocol == BE16(IPV6)) {
        struct {
            __be32 version;
            __be16 length;
            __u8 next;
            __u8 hops;
            __u8 src[16];
            __u8 dst[16];
        } head;
        if (bpf_skb_load_bytes(skb, at, &head, sizeof head))
            return UNREAD;
        key->version = 6;
        key->protocol = head.next;
        COPY(key->src, head.src, 16);
        COPY(key->dst, head.dst, 16);
        at += sizeof head;
        // Behind other headers there may be a fragment, or ports.
        if (head.next == 0 || head.next == 43 || head.next == FIRST_EXTENSIONS || head.next == 60)
            return UNREAD;
    } else {
        return NOTHING;
    }
    if (key->protocol != TCP && key->protocol != UDP)
        return NOTHING;
    if (bpf_skb_load_bytes(skb, at, &ports, sizeof ports))
        return UNREAD;
    key->src_port = ports.src;
    key->dst_port = ports.dst;
    here->header = at + 8;
    if (key->protocol == TCP) {
        if (bpf_skb_load_bytes(skb, at + 12, flags, sizeof flags))
            return UNREAD;
        here->header = at + (flags[0] >> 4) * 4;
        *controls = flags[1] & FIN_SYN_RST;
    }
    return PASSES;
}

// Whether it comes from the neighbour to which replies go.
INLINE int is_known(const struct __sk_buff *skb, const struct passage *passage)
{
    __u8 from[6];
    if (!(passage->how & IS_KNOWN))
        return 1;
    if (bpf_skb_load_bytes(skb, 6, from, sizeof from))
        return 0;
    for (int i = 0; i < 6; i++)
        if (from[i] != passage->from[i])
            return 0;
    return 1;
}

SEC("socket")
int inco_ring(struct __sk_buff *skb)
{
    __u32 ifindex = skb->ifindex;
    __u32 *at = bpf_map_lookup_elem(&interfaces, &ifindex);
    struct here *here = here_now();
    struct settings *of = settings_now();
    __u32 cpu = bpf_get_smp_processor_id();
    __u32 controls = 0;
    struct marker marker;

    if (skb->pkt_type == PACKET_OUTGOING || !at || !here || !of || cpu >= CPUS)
        return ENOUGH;
    if (UNLIKELY(here->what == TAKEN)) {
        // Nobody has carried out what was decided: from now on nothing is taken.
        of->missed = 1;
        here->what = NOTHING;
    }
    if (UNLIKELY(is_marker(skb, of, &marker)))
        return 0;
    __u32 number = *at;
    struct entrance *entrance = bpf_map_lookup_elem(&entrances, &number);
    if (!entrance)
        return ENOUGH;
    here->key = (struct key){.entrance = number};
    __u32 what = read_flow(skb, here, &controls);
    if (what == PASSES && !controls) {
        __u32 *index = bpf_map_lookup_elem(&flows, &here->key);
        struct passage *passage = index ? bpf_map_lookup_elem(&passages, index) : 0;
        if (passage && *(volatile __u64 *)&passage->is_on) {
            __u64 done = *(volatile __u64 *)&entrance->done;
            if (*(volatile __u64 *)&passage->floor <= done && *(volatile __u64 *)&passage->last <= done &&
                *(volatile __u64 *)&entrance->unread <= done && !of->missed && is_known(skb, passage) &&
                bpf_ktime_get_ns() < *(volatile __u64 *)&of->until) {
                here->passage = *index;
                here->what = TAKEN;
                return 0;
            }
        }
    }
    if (what == NOTHING) {
        // Numbered all the same: it has a place in the ring.
        here->key.protocol = 0;
        what = PASSES;
    }
    here->what = what;
    entrance->begun[cpu]++;
    return ENOUGH;
}

INLINE int take(struct __sk_buff *skb, __u32 index, __u32 header)
{
    struct passage *passage = bpf_map_lookup_elem(&passages, &index);
    if (!passage)
        return TC_ACT_SHOT;
    // As the frames that it is divided into.
    __u32 frames = skb->gso_segs > 1 ? skb->gso_segs : 1;
    __u64 bytes = skb->len + (__u64)(frames - 1) * header;
    if (skb->vlan_present && bpf_skb_vlan_pop(skb))
        return TC_ACT_SHOT;
    __u8 *data = (void *)(long)skb->data;
    if ((void *)(data + ETHERNET) > (void *)(long)skb->data_end)
        return TC_ACT_SHOT;
    COPY(data, passage->dst, 6);
    COPY(data + 6, passage->src, 6);
    __sync_fetch_and_add(&passage->packets, frames);
    __sync_fetch_and_add(&passage->bytes, bytes);
    if (passage->how & TO_PEER) {
        if (skb->pkt_type != PACKET_HOST)
            bpf_skb_change_type(skb, PACKET_HOST);
        return bpf_redirect_peer(passage->ifindex, 0);
    }
    if (passage->vlan && bpf_skb_vlan_push(skb, BE16(VLAN), passage->vlan))
        return TC_ACT_SHOT;
    return bpf_redirect(passage->ifindex, 0);
}

SEC("classifier")
int inco_path(struct __sk_buff *skb)
{
    struct here *here = here_now();
    struct settings *of = settings_now();
    __u32 cpu = bpf_get_smp_processor_id();
    struct marker marker;

    if (!here || !of || cpu >= CPUS)
        return TC_ACT_OK;
    __u32 what = here->what;
    here->what = NOTHING;
    if (what == TAKEN)
        return take(skb, here->passage, here->header);
    if (what == NOTHING) {
        if (!is_marker(skb, of, &marker))
            return TC_ACT_OK; // without a worker's socket no filter has seen it
        struct entrance *done = bpf_map_lookup_elem(&entrances, &marker.entrance);
        if (done && marker.number > done->done)
            *(volatile __u64 *)&done->done = marker.number;
        return TC_ACT_SHOT;
    }
    __u32 number = here->key.entrance;
    struct entrance *entrance = bpf_map_lookup_elem(&entrances, &number);
    if (!entrance)
        return TC_ACT_OK;
    // Numbered first, looked up afterwards.
    __u64 passed = __sync_fetch_and_add(&entrance->passed, 1) + 1;
    if (what == UNREAD) {
        entrance->unread = passed;
    } else if (here->key.protocol) {
        __u32 *index = bpf_map_lookup_elem(&flows, &here->key);
        struct passage *passage = index ? bpf_map_lookup_elem(&passages, index) : 0;
        if (passage)
            *(volatile __u64 *)&passage->last = passed;
    }
    *(volatile __u64 *)&entrance->placed[cpu] += 1;
    return TC_ACT_OK;
}

SEC("classifier")
int inco_marker(struct __sk_buff *skb)
{
    struct settings *of = settings_now();
    struct marker marker;

    if (!of || !is_marker(skb, of, &marker))
        return TC_ACT_OK;
    return bpf_redirect(skb->ifindex, F_INGRESS);
}

char program_license[] SEC("license") = "Dual MIT/GPL";
