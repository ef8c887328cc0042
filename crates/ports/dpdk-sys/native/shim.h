/* What inco uses of DPDK. bindgen reads this file; DPDK's inline functions that it allows get C wrappers (about 1.5 ns a
 * call, so they are called once per burst). Structures whose layout differs between DPDK's releases stay on the C side:
 * ports are configured and read through the plain structures below. */
#ifndef INCO_DPDK_SHIM_H
#define INCO_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* Where the fields of an mbuf are in the headers of this machine; the Rust side pins its own layout to them. */
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
	uint16_t tx_segments_max; /* segments that a packet to send may have */
	int32_t socket;
};

struct inco_port_config {
	struct rte_mempool *pool;
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu; /* 0: as it is */
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

/* The thread's rte_errno: a positive errno. */
int inco_errno(void);
/* Each of these gives 0 or a negative errno. */
int inco_port_info(uint16_t port, struct inco_port_info *info);
/* Configures a stopped port and its queues. */
int inco_port_configure(uint16_t port, const struct inco_port_config *config);
/* Deals packets to receive queues by the Toeplitz hash of their addresses with a key that repeats `key`: those whose hash
 * ends in the 6 bits i go to queue shares[i]. For a started port. */
int inco_port_deal(uint16_t port, const uint8_t key[2], const uint16_t shares[RTE_ETH_RETA_GROUP_SIZE]);
int inco_port_stats(uint16_t port, struct inco_port_stats *stats);
int inco_port_link(uint16_t port, struct inco_link *link);
/* The MTU of a kernel interface in this process' network namespace, or a negative errno. */
int inco_interface_mtu(const char *name);
/* Stops and closes a port, and removes its device when that was the device's last port. */
int inco_port_close(uint16_t port);
/* Writes at most `capacity` port ids of the device that `devargs` names and gives how many there are. */
int inco_ports_of(const char *devargs, uint16_t *ports, uint16_t capacity);

#endif
