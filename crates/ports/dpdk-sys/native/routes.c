#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>

struct inco_routes {
	enum inco_routes_kind kind;
	void *table;
};

static uint32_t v4(const struct inco_route *route)
{
	const uint8_t *a = route->address;

	return (uint32_t)a[0] << 24 | (uint32_t)a[1] << 16 | (uint32_t)a[2] << 8 | a[3];
}

static void *create(const char *name, enum inco_routes_kind kind, uint32_t count, uint32_t groups)
{
	switch (kind) {
	case INCO_ROUTES_LPM: {
		const struct rte_lpm_config config = { .max_rules = count, .number_tbl8s = groups };
		return rte_lpm_create(name, SOCKET_ID_ANY, &config);
	}
	case INCO_ROUTES_FIB: {
		struct rte_fib_conf config = { .type = RTE_FIB_DIR24_8, .default_nh = UINT32_MAX >> 1, .max_routes = count };
		config.dir24_8.nh_sz = RTE_FIB_DIR24_8_4B;
		config.dir24_8.num_tbl8 = groups;
		return rte_fib_create(name, SOCKET_ID_ANY, &config);
	}
	case INCO_ROUTES_LPM6: {
		const struct rte_lpm6_config config = { .max_rules = count, .number_tbl8s = groups };
		return rte_lpm6_create(name, SOCKET_ID_ANY, &config);
	}
	case INCO_ROUTES_FIB6: {
		struct rte_fib6_conf config = { .type = RTE_FIB6_TRIE, .default_nh = UINT32_MAX >> 1, .max_routes = count };
		config.trie.nh_sz = RTE_FIB6_TRIE_4B;
		config.trie.num_tbl8 = groups;
		return rte_fib6_create(name, SOCKET_ID_ANY, &config);
	}
	}
	rte_errno = EINVAL;
	return NULL;
}

static int add(struct inco_routes *routes, const struct inco_route *route)
{
	switch (routes->kind) {
	case INCO_ROUTES_LPM:
		/* It has no route of length 0. */
		return rte_lpm_add(routes->table, v4(route), route->len, route->value);
	case INCO_ROUTES_FIB:
		return rte_fib_add(routes->table, v4(route), route->len, route->value);
	case INCO_ROUTES_LPM6:
		return rte_lpm6_add(routes->table, route->address, route->len, route->value);
	case INCO_ROUTES_FIB6:
		return rte_fib6_add(routes->table, route->address, route->len, route->value);
	}
	return -EINVAL;
}

struct inco_routes *inco_routes_create(const char *name, enum inco_routes_kind kind, const struct inco_route *all,
		uint32_t count, uint32_t groups)
{
	struct inco_routes *routes = calloc(1, sizeof(*routes));
	int ret = 0;

	if (routes == NULL) {
		rte_errno = ENOMEM;
		return NULL;
	}
	routes->kind = kind;
	routes->table = create(name, kind, count, groups);
	if (routes->table == NULL) {
		free(routes);
		return NULL;
	}
	for (uint32_t i = 0; i < count && ret == 0; i++)
		ret = add(routes, &all[i]);
	if (ret != 0) {
		inco_routes_free(routes);
		rte_errno = -ret;
		return NULL;
	}
	return routes;
}

int inco_routes_lookup(struct inco_routes *routes, const void *addresses, uint32_t *values, uint32_t count)
{
	uint64_t wide[INCO_ROUTES_ADDRESSES];
	int32_t hops[INCO_ROUTES_ADDRESSES];
	int ret = 0;

	if (count > INCO_ROUTES_ADDRESSES)
		return -EINVAL;
	switch (routes->kind) {
	case INCO_ROUTES_LPM:
		ret = rte_lpm_lookup_bulk(routes->table, addresses, values, count);
		for (uint32_t i = 0; i < count; i++)
			values[i] = (values[i] & RTE_LPM_LOOKUP_SUCCESS) != 0 ? values[i] & 0x00ffffff : UINT32_MAX;
		return ret;
	case INCO_ROUTES_LPM6:
		ret = rte_lpm6_lookup_bulk_func(routes->table, (void *)(uintptr_t)addresses, hops, count);
		for (uint32_t i = 0; i < count; i++)
			values[i] = (uint32_t)hops[i];
		return ret;
	case INCO_ROUTES_FIB:
		ret = rte_fib_lookup_bulk(routes->table, (void *)(uintptr_t)addresses, wide, count);
		break;
	case INCO_ROUTES_FIB6:
		ret = rte_fib6_lookup_bulk(routes->table, (void *)(uintptr_t)addresses, wide, count);
		break;
	}
	for (uint32_t i = 0; i < count; i++)
		values[i] = wide[i] == UINT32_MAX >> 1 ? UINT32_MAX : (uint32_t)wide[i];
	return ret;
}

void inco_routes_free(struct inco_routes *routes)
{
	if (routes == NULL)
		return;
	switch (routes->kind) {
	case INCO_ROUTES_LPM:
		rte_lpm_free(routes->table);
		break;
	case INCO_ROUTES_FIB:
		rte_fib_free(routes->table);
		break;
	case INCO_ROUTES_LPM6:
		rte_lpm6_free(routes->table);
		break;
	case INCO_ROUTES_FIB6:
		rte_fib6_free(routes->table);
		break;
	}
	free(routes);
}
