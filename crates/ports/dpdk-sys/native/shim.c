#include "shim.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bytes of a Toeplitz key: the longest of any card, and the default for a card that does not report it. */
#define RSS_KEY_MAX 64
#define RSS_KEY_USUAL 40

int inco_errno(void)
{
	return rte_errno;
}

int inco_port_info(uint16_t port, struct inco_port_info *info)
{
	struct rte_eth_dev_info dev;
	struct rte_ether_addr mac;
	int ret = rte_eth_dev_info_get(port, &dev);

	memset(info, 0, sizeof(*info));
	if (ret != 0)
		return ret;
	snprintf(info->driver, sizeof(info->driver), "%s", dev.driver_name == NULL ? "" : dev.driver_name);
	/* The port's name, which for a virtual device is the device's. */
	char name[RTE_ETH_NAME_MAX_LEN];
	if (rte_eth_dev_get_name_by_port(port, name) == 0)
		snprintf(info->device, sizeof(info->device), "%s", name);
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	info->max_rx_queues = dev.max_rx_queues;
	info->max_tx_queues = dev.max_tx_queues;
	info->min_mtu = dev.min_mtu;
	info->max_mtu = dev.max_mtu;
	if (rte_eth_dev_get_mtu(port, &info->mtu) != 0)
		info->mtu = 0;
	info->tx_segments_max = 1;
	if ((dev.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0 && dev.tx_desc_lim.nb_mtu_seg_max > 1)
		info->tx_segments_max = dev.tx_desc_lim.nb_mtu_seg_max;
	info->socket = rte_eth_dev_socket_id(port);
	return 0;
}

int inco_port_configure(uint16_t port, const struct inco_port_config *config)
{
	struct rte_eth_dev_info dev;
	struct rte_eth_conf conf;
	uint16_t rx_descriptors = config->rx_descriptors;
	uint16_t tx_descriptors = config->tx_descriptors;
	uint16_t mtu = config->mtu;
	int socket = rte_eth_dev_socket_id(port);
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	memset(&conf, 0, sizeof(conf));
	if (config->rx_queues > 1) {
		/* Addresses only: packets between two hosts stay in one queue, fragments too. */
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = RTE_ETH_RSS_IP & dev.flow_type_rss_offloads;
		if (conf.rx_adv_conf.rss_conf.rss_hf == 0)
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
	}
	if (mtu == 0 && rte_eth_dev_get_mtu(port, &mtu) != 0)
		mtu = 0;
	conf.rxmode.mtu = mtu;
	/* Frames larger than a buffer arrive as a chain if the device supports it. */
	if ((uint32_t)mtu + RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN + RTE_PKTMBUF_HEADROOM >
			rte_pktmbuf_data_room_size(config->pool) &&
			(dev.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	if ((dev.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

	ret = rte_eth_dev_configure(port, config->rx_queues, config->tx_queues, &conf);
	if (ret != 0)
		return ret;
	if (config->mtu != 0) {
		ret = rte_eth_dev_set_mtu(port, config->mtu);
		/* Software devices without an MTU accept any frame. */
		if (ret != 0 && ret != -ENOTSUP)
			return ret;
	}
	ret = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_descriptors, &tx_descriptors);
	if (ret != 0)
		return ret;
	for (uint16_t queue = 0; queue < config->rx_queues; queue++) {
		ret = rte_eth_rx_queue_setup(port, queue, rx_descriptors, socket, NULL, config->pool);
		if (ret != 0)
			return ret;
	}
	for (uint16_t queue = 0; queue < config->tx_queues; queue++) {
		ret = rte_eth_tx_queue_setup(port, queue, tx_descriptors, socket, NULL);
		if (ret != 0)
			return ret;
	}
	ret = config->promiscuous ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port);
	return ret == -ENOTSUP ? 0 : ret;
}

int inco_port_configure_rss(uint16_t port, const uint8_t key[2], const uint16_t shares[RTE_ETH_RETA_GROUP_SIZE])
{
	struct rte_eth_dev_info dev;
	struct rte_eth_rss_reta_entry64 table[RTE_ETH_RSS_RETA_SIZE_512 / RTE_ETH_RETA_GROUP_SIZE];
	uint8_t wanted[RSS_KEY_MAX], has[RSS_KEY_MAX];
	struct rte_eth_rss_conf rss;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	memset(&rss, 0, sizeof(rss));
	rss.rss_hf = RTE_ETH_RSS_IP & dev.flow_type_rss_offloads;
	rss.rss_key_len = dev.hash_key_size != 0 ? dev.hash_key_size : RSS_KEY_USUAL;
	if (rss.rss_hf == 0 || rss.rss_key_len > RSS_KEY_MAX || dev.reta_size == 0 ||
			dev.reta_size > RTE_ETH_RSS_RETA_SIZE_512 || (dev.reta_size & (dev.reta_size - 1)) != 0 ||
			dev.reta_size < RTE_ETH_RETA_GROUP_SIZE)
		return -ENOTSUP;
	for (size_t i = 0; i < sizeof(wanted); i++)
		wanted[i] = key[i % 2];
	rss.rss_key = wanted;
	ret = rte_eth_dev_rss_hash_update(port, &rss);
	if (ret != 0)
		return ret;
	memset(table, 0, sizeof(table));
	for (size_t group = 0; group < dev.reta_size / RTE_ETH_RETA_GROUP_SIZE; group++) {
		table[group].mask = UINT64_MAX;
		memcpy(table[group].reta, shares, sizeof(table[group].reta));
	}
	ret = rte_eth_dev_rss_reta_update(port, table, dev.reta_size);
	if (ret != 0)
		return ret;
	/* A driver may accept a key but keep its own. */
	memset(has, 0, sizeof(has));
	rss.rss_key = has;
	ret = rte_eth_dev_rss_hash_conf_get(port, &rss);
	if (ret != 0)
		return ret;
	return memcmp(wanted, has, rss.rss_key_len < RSS_KEY_USUAL ? RSS_KEY_USUAL : rss.rss_key_len) == 0 ? 0 : -ENOTSUP;
}

int inco_port_stats(uint16_t port, struct inco_port_stats *stats)
{
	struct rte_eth_stats s;
	int ret = rte_eth_stats_get(port, &s);

	memset(stats, 0, sizeof(*stats));
	if (ret != 0)
		return ret;
	stats->rx_packets = s.ipackets;
	stats->rx_bytes = s.ibytes;
	stats->tx_packets = s.opackets;
	stats->tx_bytes = s.obytes;
	stats->rx_missed = s.imissed;
	stats->rx_errors = s.ierrors;
	stats->rx_no_mbuf = s.rx_nombuf;
	stats->tx_errors = s.oerrors;
	return 0;
}

int inco_port_link(uint16_t port, struct inco_link *link)
{
	struct rte_eth_link l;
	int ret;

	memset(&l, 0, sizeof(l));
	ret = rte_eth_link_get_nowait(port, &l);
	memset(link, 0, sizeof(*link));
	if (ret != 0)
		return ret;
	link->speed_mbps = l.link_speed;
	link->up = l.link_status == RTE_ETH_LINK_UP;
	link->full_duplex = l.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return 0;
}

int inco_interface_mtu(const char *name)
{
	struct ifreq request;
	int ret;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	ret = ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : -errno;
	close(fd);
	return ret;
}

int inco_port_close(uint16_t port)
{
	struct rte_eth_dev_info dev;
	uint16_t sibling;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		dev.device = NULL;
	ret = rte_eth_dev_stop(port);
	if (ret != 0 && ret != -ENOTSUP)
		return ret;
	ret = rte_eth_dev_close(port);
	if (ret != 0 || dev.device == NULL)
		return ret;
	RTE_ETH_FOREACH_DEV_OF(sibling, dev.device)
		return 0;
	ret = rte_dev_remove(dev.device);
	/* A bus that cannot detach a device keeps it; the port is closed anyway. */
	return ret == -ENOTSUP ? 0 : ret;
}

int inco_ports_of(const char *devargs, uint16_t *ports, uint16_t capacity)
{
	struct rte_dev_iterator iterator;
	uint16_t port;
	int found = 0;

	RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &iterator) {
		if (found < capacity)
			ports[found] = port;
		found++;
	}
	return found;
}
