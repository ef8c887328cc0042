#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_PROTOCOL, FIELD_SRC, FIELD_DST, FIELD_SRC_PORT, FIELD_DST_PORT, FIELDS };

RTE_ACL_RULE_DEF(acl_rule, FIELDS);

/* The first byte of a key is read alone, the others in words of four bytes. */
static const struct rte_acl_field_def DEFINITIONS[FIELDS] = {
	{ RTE_ACL_FIELD_TYPE_BITMASK, 1, FIELD_PROTOCOL, 0, offsetof(struct inco_acl_key, protocol) },
	{ RTE_ACL_FIELD_TYPE_MASK, 4, FIELD_SRC, 1, offsetof(struct inco_acl_key, src) },
	{ RTE_ACL_FIELD_TYPE_MASK, 4, FIELD_DST, 2, offsetof(struct inco_acl_key, dst) },
	{ RTE_ACL_FIELD_TYPE_RANGE, 2, FIELD_SRC_PORT, 3, offsetof(struct inco_acl_key, src_port) },
	{ RTE_ACL_FIELD_TYPE_RANGE, 2, FIELD_DST_PORT, 3, offsetof(struct inco_acl_key, dst_port) },
};

static int build(struct rte_acl_ctx *acl, const struct inco_acl_rule *rules, uint32_t count)
{
	struct rte_acl_config config;
	int ret = 0;

	for (uint32_t i = 0; i < count && ret == 0; i++) {
		const struct inco_acl_rule *rule = &rules[i];
		struct acl_rule out;

		memset(&out, 0, sizeof(out));
		out.data.category_mask = 1;
		out.data.priority = (int32_t)(count - i);
		out.data.userdata = i + 1;
		out.field[FIELD_PROTOCOL].value.u8 = rule->protocol;
		out.field[FIELD_PROTOCOL].mask_range.u8 = rule->protocol_mask;
		out.field[FIELD_SRC].value.u32 = rule->src;
		out.field[FIELD_SRC].mask_range.u32 = rule->src_len;
		out.field[FIELD_DST].value.u32 = rule->dst;
		out.field[FIELD_DST].mask_range.u32 = rule->dst_len;
		out.field[FIELD_SRC_PORT].value.u16 = rule->src_port_first;
		out.field[FIELD_SRC_PORT].mask_range.u16 = rule->src_port_last;
		out.field[FIELD_DST_PORT].value.u16 = rule->dst_port_first;
		out.field[FIELD_DST_PORT].mask_range.u16 = rule->dst_port_last;
		ret = rte_acl_add_rules(acl, (const struct rte_acl_rule *)&out, 1);
	}
	if (ret != 0)
		return ret;
	memset(&config, 0, sizeof(config));
	config.num_categories = 1;
	config.num_fields = FIELDS;
	memcpy(config.defs, DEFINITIONS, sizeof(DEFINITIONS));
	return rte_acl_build(acl, &config);
}

struct rte_acl_ctx *inco_acl_create(const char *name, const struct inco_acl_rule *rules, uint32_t count)
{
	const struct rte_acl_param param = {
		.name = name,
		.socket_id = SOCKET_ID_ANY,
		.rule_size = RTE_ACL_RULE_SZ(FIELDS),
		.max_rule_num = count,
	};
	struct rte_acl_ctx *acl;
	int ret;

	/* A list of that name would be returned as it is. */
	if (rte_acl_find_existing(name) != NULL) {
		rte_errno = EEXIST;
		return NULL;
	}
	acl = rte_acl_create(&param);
	if (acl == NULL)
		return NULL;
	ret = build(acl, rules, count);
	if (ret != 0) {
		rte_acl_free(acl);
		rte_errno = -ret;
		return NULL;
	}
	return acl;
}

int inco_acl_classify(const struct rte_acl_ctx *acl, const struct inco_acl_key *keys, uint32_t *rules, uint32_t count)
{
	const uint8_t *data[INCO_ACL_KEYS];

	if (count > INCO_ACL_KEYS)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++)
		data[i] = (const uint8_t *)&keys[i];
	return rte_acl_classify(acl, data, rules, count, 1);
}

void inco_acl_free(struct rte_acl_ctx *acl)
{
	rte_acl_free(acl);
}
