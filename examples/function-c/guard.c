/*
 * `inco-nf` with a function more: `guard` drops UDP packets to some ports. docs/tasks/own-function.md explains it.
 * Its configuration has a port in each line.
 */
#include <inco_function.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORTS_LIMIT 64

struct configuration {
    size_t count;
    uint16_t ports[PORTS_LIMIT];
};

struct guard {
    struct configuration *configuration;
    uint64_t passed;
};

/* Indices into `reasons`. */
enum { GUARDED };
static const struct inco_number reasons[] = {
    [GUARDED] = {"guarded", "UDP packets to one of the ports", false},
};
static const struct inco_number metrics[] = {
    {"passed", "Packets that passed", false},
};

static void *compile(const char *text, size_t bytes, const struct inco_setup *setup, char *error,
                     size_t error_bytes) {
    (void)setup;
    struct configuration *of = calloc(1, sizeof *of);
    if (of == NULL)
        return NULL;
    unsigned port = 0, digits = 0, line = 1;
    for (size_t at = 0; at <= bytes; at++) {
        if (at < bytes && text[at] >= '0' && text[at] <= '9' && digits < 5) {
            port = port * 10 + (unsigned)(text[at] - '0');
            digits++;
        } else if (at < bytes && text[at] != '\n') {
            snprintf(error, error_bytes, "line %u: write a port", line);
            goto wrong;
        } else {
            if (digits > 0) {
                if (port == 0 || port > 65535 || of->count == PORTS_LIMIT) {
                    snprintf(error, error_bytes, "line %u: there are up to %d ports from 1 to 65535", line,
                             PORTS_LIMIT);
                    goto wrong;
                }
                of->ports[of->count++] = (uint16_t)port;
            }
            port = digits = 0;
            line++;
        }
    }
    return of;
wrong:
    free(of);
    return NULL;
}

static void *create(void *configuration, const struct inco_setup *setup) {
    (void)setup;
    struct guard *guard = calloc(1, sizeof *guard);
    if (guard != NULL)
        guard->configuration = configuration;
    return guard;
}

static void *reload(void *function, void *configuration) {
    struct guard *guard = function;
    void *before = guard->configuration;
    guard->configuration = configuration;
    return before;
}

static void destroy(void *function) {
    struct guard *guard = function;
    free(guard->configuration);
    free(guard);
}

/* The destination port of a UDP packet over IPv4 without options; 0 of others. */
static uint16_t udp_port(const struct inco_packet *packet) {
    const uint8_t *frame = packet->data;
    if (packet->len < 42 || frame[12] != 0x08 || frame[13] != 0x00 || frame[14] != 0x45 || frame[23] != 17)
        return 0;
    return (uint16_t)(frame[36] << 8 | frame[37]);
}

static void process(void *function, struct inco_packet *packets, size_t count, uint8_t port,
                    struct inco_outbox *outbox, uint64_t now_ns) {
    (void)port, (void)outbox, (void)now_ns;
    struct guard *guard = function;
    const struct configuration *of = guard->configuration;
    for (size_t at = 0; at < count; at++) {
        uint16_t to = udp_port(&packets[at]);
        bool is_guarded = false;
        for (size_t of_port = 0; of_port < of->count; of_port++)
            is_guarded |= of->ports[of_port] == to;
        if (is_guarded)
            inco_drop(&packets[at], GUARDED);
        else
            guard->passed++;
    }
}

static void values(const void *function, uint64_t *values) {
    const struct guard *guard = function;
    values[0] = guard->passed;
}

static void summary(const void *function, struct inco_summary *summary) {
    const struct guard *guard = function;
    summary->entries = guard->configuration->count;
}

static const struct inco_function guard = {
    .version = INCO_FUNCTION_VERSION,
    .name = "guard",
    .help = "Drops UDP packets to some ports",
    .reasons = reasons,
    .reasons_count = sizeof reasons / sizeof *reasons,
    .metrics = metrics,
    .metrics_count = sizeof metrics / sizeof *metrics,
    .compile = compile,
    .free_configuration = free,
    .create = create,
    .reload = reload,
    .process = process,
    .destroy = destroy,
    .values = values,
    .summary = summary,
};

int main(int argc, char **argv) {
    const struct inco_function *const functions[] = {&guard};
    return inco_main(argc, argv, functions, 1);
}
