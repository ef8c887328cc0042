/* The parts of DPDK that inco uses. bindgen reads this file; the allowed inline functions get C wrappers (about 1.5 ns per
 * call, so they are called once per burst). Structures whose layout differs between DPDK releases stay on the C side:
 * ports are configured and read through the structures below. */
#ifndef INCO_DPDK_SHIM_H
#define INCO_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_acl.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* Field offsets of an mbuf in the installed headers; the Rust side pins its layout to them. */
enum {
	INCO_MBUF_SIZE = sizeof(struct rte_mbuf),
	INCO_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	INCO_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	INCO_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	INCO_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	INCO_MBUF_PORT = offsetof(struct rte_mbuf, port),
	INCO_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	INCO_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	INCO_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	INCO_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	INCO_MBUF_POOL = offsetof(struct rte_mbuf, pool),
	INCO_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	INCO_MBUF_HEADROOM = RTE_PKTMBUF_HEADROOM,
	INCO_PORT_LIMIT = RTE_MAX_ETHPORTS,
	INCO_DPDK_YEAR = RTE_VER_YEAR,
	INCO_DPDK_MONTH = RTE_VER_MONTH,
};

/* Function-like macros become constants here. */
static const uint64_t INCO_MBUF_SHARED_BUFFER = RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;

struct inco_port_info {
	char driver[64];
	char device[64];
	uint8_t mac[6];
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t mtu;
	uint16_t tx_segments_max; /* maximum segments of a packet to send */
	int32_t socket;
};

struct inco_port_config {
	struct rte_mempool *pool;
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu; /* 0: unchanged */
	uint8_t promiscuous;
};

struct inco_port_stats {
	uint64_t rx_packets;
	uint64_t rx_bytes;
	uint64_t tx_packets;
	uint64_t tx_bytes;
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t rx_no_mbuf;
	uint64_t tx_errors;
};

struct inco_link {
	uint32_t speed_mbps; /* UINT32_MAX: unknown */
	uint8_t up;
	uint8_t full_duplex;
};

/* A rule of an access list. Addresses and ports in the order of the host; ranges include both ends. */
struct inco_acl_rule {
	uint32_t src;
	uint32_t dst;
	uint16_t src_port_first;
	uint16_t src_port_last;
	uint16_t dst_port_first;
	uint16_t dst_port_last;
	uint8_t src_len;
	uint8_t dst_len;
	uint8_t protocol;
	uint8_t protocol_mask;
};

/* What rules look at. Addresses and ports in the order of the network. */
struct inco_acl_key {
	uint8_t protocol;
	uint8_t zero[3];
	uint32_t src;
	uint32_t dst;
	uint16_t src_port;
	uint16_t dst_port;
};

/* Keys of one lookup. */
enum { INCO_ACL_KEYS = 64 };

/* Compiles rules, the first one having precedence. Null on failure, with rte_errno set. */
struct rte_acl_ctx *inco_acl_create(const char *name, const struct inco_acl_rule *rules, uint32_t count);
/* Writes for each of at most INCO_ACL_KEYS keys the number of the rule from 1, or 0. Returns 0 or a negative errno. */
int inco_acl_classify(const struct rte_acl_ctx *acl, const struct inco_acl_key *keys, uint32_t *rules, uint32_t count);
/* Frees rules; nothing for null. */
void inco_acl_free(struct rte_acl_ctx *acl);

/* A route: an address from its first byte on (IPv4 takes four), its length in bits, and a number of 24 bits. */
struct inco_route {
	uint8_t address[16];
	uint8_t len;
	uint32_t value;
};

/* Routes in one of DPDK's tables. */
struct inco_routes;
enum inco_routes_kind { INCO_ROUTES_LPM, INCO_ROUTES_FIB, INCO_ROUTES_LPM6, INCO_ROUTES_FIB6 };
/* Builds a table with room for `groups` tables of 256 places. Null on failure, with rte_errno set. */
struct inco_routes *inco_routes_create(const char *name, enum inco_routes_kind kind, const struct inco_route *routes,
		uint32_t count, uint32_t groups);
/* Writes for each address its value, or UINT32_MAX: 4 bytes in the order of the host, or 16 bytes each. Returns 0 or a
 * negative errno. At most INCO_ROUTES_ADDRESSES. */
int inco_routes_lookup(struct inco_routes *routes, const void *addresses, uint32_t *values, uint32_t count);
/* Frees a table; nothing for null. */
void inco_routes_free(struct inco_routes *routes);
/* Addresses of one lookup. */
enum { INCO_ROUTES_ADDRESSES = 64 };

/* The thread's rte_errno: a positive errno. */
int inco_errno(void);
/* Each of these returns 0 or a negative errno. */
int inco_port_info(uint16_t port, struct inco_port_info *info);
/* Configures a stopped port and its queues. */
int inco_port_configure(uint16_t port, const struct inco_port_config *config);
/* Configures RSS on a started port: the Toeplitz hash of the addresses with a key that repeats `key`. Packets whose hash
 * ends in the 6 bits i go to queue shares[i]. */
int inco_port_configure_rss(uint16_t port, const uint8_t key[2], const uint16_t shares[RTE_ETH_RETA_GROUP_SIZE]);
int inco_port_stats(uint16_t port, struct inco_port_stats *stats);
int inco_port_link(uint16_t port, struct inco_link *link);
/* The MTU of a kernel interface in this process's network namespace, or a negative errno. */
int inco_interface_mtu(const char *name);
/* Stops and closes a port, and detaches its device if that was its last port. */
int inco_port_close(uint16_t port);
/* Writes at most `capacity` port ids of the device `devargs` and returns their number. */
int inco_ports_of(const char *devargs, uint16_t *ports, uint16_t capacity);

#endif
