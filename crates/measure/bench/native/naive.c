/* A plain flow table on DPDK, as a peer of inco: key, CRC hash, open addressing, counter, send.
 * It validates no length, checksum or fragment, and it never removes a flow. SLOTS sets its size.
 *
 * naive EAL-ARGUMENTS -- IP SINKS SLOTS MBUFS: receives from port 0 and sends to ports 1 to SINKS. IP is 4 or 6,
 * SLOTS a power of two. It polls on its second lcore. It answers each line of its standard input with two numbers:
 * packets received, and flows in the table. */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_hash_crc.h>
#include <rte_malloc.h>
#include <rte_prefetch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BURST 64
#define MAX_SINKS 32
/* Offsets in an untagged Ethernet frame whose IP header has no options. */
#define V4_PROTOCOL 23
#define V4_ADDRESSES 26
#define V6_PROTOCOL 20
#define V6_ADDRESSES 22

struct v4_entry { uint64_t key[2]; uint64_t packets; uint32_t bytes; uint16_t sink; uint16_t used; };
struct v6_entry { uint64_t key[5]; uint64_t packets; uint32_t bytes; uint16_t sink; uint16_t used; uint64_t pad; };

static volatile uint64_t received, flows;
static void *table;
static uint32_t mask;
static unsigned sinks, ip;

static inline void key4(const uint8_t *frame, uint64_t key[2]) {
    uint32_t ports;
    memcpy(key, frame + V4_ADDRESSES, 8);
    memcpy(&ports, frame + V4_ADDRESSES + 8, 4);
    key[1] = (uint64_t)frame[V4_PROTOCOL] << 32 | ports;
}

static inline void key6(const uint8_t *frame, uint64_t key[5]) {
    uint32_t ports;
    memcpy(key, frame + V6_ADDRESSES, 32);
    memcpy(&ports, frame + V6_ADDRESSES + 32, 4);
    key[4] = (uint64_t)frame[V6_PROTOCOL] << 32 | ports;
}

static void send_all(uint16_t sink, struct rte_mbuf **frames, unsigned count) {
    unsigned sent = rte_eth_tx_burst(1 + sink, 0, frames, count);
    if (unlikely(sent < count))
        rte_pktmbuf_free_bulk(frames + sent, count - sent);
}

/* One loop per address family, so that the key length is a compile-time constant. */
#define LOOP(family, words)                                                                                          \
    static void loop##family(void) {                                                                                 \
        struct v##family##_entry *entries = table;                                                                   \
        struct rte_mbuf *frames[BURST], *out[MAX_SINKS][BURST];                                              \
        unsigned waiting[MAX_SINKS] = {0};                                                                           \
        uint64_t keys[BURST][words], next = 0;                                                                   \
        uint32_t places[BURST];                                                                                  \
        for (;;) {                                                                                                   \
            unsigned count = rte_eth_rx_burst(0, 0, frames, BURST);                                                  \
            for (unsigned i = 0; i < count; i++)                                                                     \
                rte_prefetch0(rte_pktmbuf_mtod(frames[i], void *));                                                  \
            for (unsigned i = 0; i < count; i++) {                                                                   \
                uint32_t hash = ~0u;                                                                                 \
                key##family(rte_pktmbuf_mtod(frames[i], uint8_t *), keys[i]);                                        \
                for (unsigned w = 0; w < words; w++)                                                                 \
                    hash = rte_hash_crc_8byte(keys[i][w], hash);                                                     \
                places[i] = hash & mask;                                                                             \
                rte_prefetch0(&entries[places[i]]);                                                                  \
            }                                                                                                        \
            for (unsigned i = 0; i < count; i++) {                                                                   \
                struct v##family##_entry *entry = &entries[places[i]];                                               \
                while (entry->used && memcmp(entry->key, keys[i], sizeof entry->key))                                \
                    entry = &entries[places[i] = (places[i] + 1) & mask];                                            \
                if (unlikely(!entry->used)) {                                                                        \
                    memcpy(entry->key, keys[i], sizeof entry->key);                                                  \
                    entry->sink = next++ % sinks;                                                                    \
                    entry->used = 1;                                                                                 \
                    flows++;                                                                                         \
                }                                                                                                    \
                entry->packets++;                                                                                    \
                entry->bytes += frames[i]->pkt_len;                                                                  \
                out[entry->sink][waiting[entry->sink]++] = frames[i];                                                \
                if (waiting[entry->sink] == BURST) {                                                             \
                    send_all(entry->sink, out[entry->sink], BURST);                                              \
                    waiting[entry->sink] = 0;                                                                        \
                }                                                                                                    \
            }                                                                                                        \
            received += count;                                                                                       \
        }                                                                                                            \
    }
LOOP(4, 2)
LOOP(6, 5)

static int poll_ports(void *none) {
    (void)none;
    ip == 4 ? loop4() : loop6();
    return 0;
}

static void open_port(uint16_t port, struct rte_mempool *pool) {
    struct rte_eth_conf none = {0};
    if (rte_eth_dev_configure(port, 1, 1, &none) || rte_eth_tx_queue_setup(port, 0, 512, 0, NULL) ||
        rte_eth_rx_queue_setup(port, 0, 512, 0, NULL, pool) || rte_eth_dev_start(port))
        rte_exit(1, "cannot open port %u\n", port);
}

int main(int argc, char **argv) {
    int used = rte_eal_init(argc, argv);
    if (used < 0 || argc - used != 5)
        rte_exit(1, "usage: naive EAL-ARGUMENTS -- IP SINKS SLOTS MBUFS\n");
    argv += used;
    ip = atoi(argv[1]), sinks = atoi(argv[2]), mask = strtoul(argv[3], NULL, 10) - 1;
    if ((ip != 4 && ip != 6) || !sinks || sinks > MAX_SINKS || (mask & (mask + 1)))
        rte_exit(1, "bad arguments\n");
    table = rte_zmalloc("table", (size_t)(mask + 1) * (ip == 4 ? sizeof(struct v4_entry) : sizeof(struct v6_entry)), 64);
    struct rte_mempool *pool = rte_pktmbuf_pool_create("frames", atoi(argv[4]), 512, 0, 2176, 0);
    if (!table || !pool)
        rte_exit(1, "no memory\n");
    for (unsigned port = 0; port <= sinks; port++)
        open_port(port, pool);
    rte_eal_remote_launch(poll_ports, NULL, rte_get_next_lcore(-1, 1, 0));
    for (char line[64]; fgets(line, sizeof line, stdin);) {
        printf("%lu %lu\n", received, flows);
        fflush(stdout);
    }
    _exit(0);
}
