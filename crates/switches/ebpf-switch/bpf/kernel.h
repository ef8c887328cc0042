// What these programs use of the kernel: types, constants and helper functions, declared here so that a build needs
// no headers beside those of the compiler. The numbers are part of the kernel's stable interface to programs.
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
// The kernel checks such a function once, for all arguments, and not again for each call.
#define CHECKED_ALONE __attribute__((noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define COPY(to, from, bytes) __builtin_memcpy(to, from, bytes)

// Map definitions, as loaders read them from the object's type information.
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) typeof(type) *name

enum {
    MAP_HASH = 1,
    MAP_ARRAY = 2,
    MAP_LRU_HASH = 9,
    MAP_RINGBUF = 27,
    F_MMAPABLE = 1 << 10,
    BPF_ANY = 0,
    BPF_NOEXIST = 1,
    RB_NO_WAKEUP = 1,
    RB_FORCE_WAKEUP = 1 << 1,
    TC_ACT_OK = 0,
    TC_ACT_SHOT = 2,
    PACKET_HOST = 0,
    PACKET_BROADCAST = 1,
    PACKET_MULTICAST = 2,
    PACKET_OTHERHOST = 3,
    F_RECOMPUTE_CSUM = 1,
    F_PSEUDO_HDR = 1 << 4,
    F_MARK_MANGLED_0 = 1 << 5, // a checksum of 0 stays, and none becomes 0
    F_IPV6 = 1 << 7,           // the address has no other checksum
    F_INGRESS = 1, // a redirected packet comes in by the interface
    ADJ_ROOM_MAC = 1, // room is made, or taken away, behind the Ethernet header
    F_ADJ_FIXED_GSO = 1,
    F_ADJ_ENCAP_IPV4 = 1 << 1,
    F_ADJ_ENCAP_UDP = 1 << 4,
    F_ADJ_ENCAP_ETH = 1 << 6,
    F_ADJ_DECAP_IPV6 = 1 << 8, // since Linux 6.3
};
// Bytes of the inner header of Ethernet.
#define F_ADJ_ENCAP_L2(bytes) ((__u64)(bytes) << 56)

enum { ENOMEM = 12, EEXIST = 17 };

// The packet as a program sees it. The kernel translates each access.
struct __sk_buff {
    __u32 len;
    __u32 pkt_type;
    __u32 mark;
    __u32 queue_mapping;
    __u32 protocol;
    __u32 vlan_present;
    __u32 vlan_tci;
    __u32 vlan_proto;
    __u32 priority;
    __u32 ingress_ifindex;
    __u32 ifindex;
    __u32 tc_index;
    __u32 cb[5];
    __u32 hash;
    __u32 tc_classid;
    __u32 data;
    __u32 data_end;
    __u32 napi_id;
    __u32 family;
    __u32 remote_ip4;
    __u32 local_ip4;
    __u32 remote_ip6[4];
    __u32 local_ip6[4];
    __u32 remote_port;
    __u32 local_port;
    __u32 data_meta;
    __u64 flow_keys;
    __u64 tstamp;
    __u32 wire_len;
    __u32 gso_segs;
    __u64 sk;
    __u32 gso_size;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 at, const void *from, __u32 len,
                                         __u64 flags) = (void *)9;
static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to,
                                         __u64 size) = (void *)10;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to,
                                         __u64 flags) = (void *)11;
static long (*const bpf_skb_vlan_push)(struct __sk_buff *skb, __be16 proto, __u16 tci) = (void *)18;
static long (*const bpf_skb_vlan_pop)(struct __sk_buff *skb) = (void *)19;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, __u32 at, void *to, __u32 len) = (void *)26;
static __s64 (*const bpf_csum_diff)(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size,
                                    __u32 seed) = (void *)28;
static long (*const bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)32;
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 more, __u32 mode, __u64 flags) = (void *)50;
static long (*const bpf_ringbuf_output)(void *map, const void *data, __u64 bytes, __u64 flags) = (void *)130;
static void *(*const bpf_ringbuf_reserve)(void *map, __u64 bytes, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*const bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static long (*const bpf_redirect_neigh)(__u32 ifindex, void *params, int len, __u64 flags) = (void *)152;
static long (*const bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;
static long (*const bpf_loop)(__u32 turns, void *callback, void *context, __u64 flags) = (void *)181;

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "these programs are built for little-endian machines"
#endif
#define BE16(x) ((__u16)__builtin_bswap16(x))
#define BE32(x) ((__u32)__builtin_bswap32(x))
