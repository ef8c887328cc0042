/*
 * A network function in C. Describe it in a struct inco_function, and call inco_main: the program is then
 * `inco-nf` with this function, with its ports, chains, reloads and counters. Link it with libinco_function.a.
 *
 * One thread calls create, reload, process, due, tick, values, summary and destroy; none of them may block. Another
 * thread may call compile, and free_configuration of what is no longer used. process and tick should not allocate.
 */
#ifndef INCO_FUNCTION_H
#define INCO_FUNCTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header, for inco_function.version. */
#define INCO_FUNCTION_VERSION 1
/* Packets in one call of process, at most. */
#define INCO_PACKETS_LIMIT 32
/* Functions of a program, at most; reasons, and metrics, of one function, at most. */
#define INCO_FUNCTIONS_LIMIT 8
#define INCO_NUMBERS_LIMIT 24
/* No time. */
#define INCO_NEVER UINT64_MAX

/* A reason or a metric. The name has 1 to 31 of a-z, 0-9 and _; the help is a sentence without a full stop. */
struct inco_number {
    const char *name;
    const char *help;
    bool is_gauge; /* whether it may fall; false for a reason */
};

/* The instance in which the function runs. */
struct inco_setup {
    uint64_t seed;     /* random: for keys of hash tables */
    uint32_t instance; /* its id, 0 if it has none */
    uint8_t ports;     /* 1 or 2 */
};

/* What becomes of a packet. */
enum inco_verdict {
    INCO_FORWARD = 0, /* it leaves by `port` */
    INCO_ANSWER = 1,  /* it has become an answer, and leaves by the port from which it came */
    INCO_DROP = 2,    /* it is dropped, for `reason` */
    INCO_CONSUME = 3, /* it was for the function itself */
};

/*
 * A packet: its frame from the destination address on. It may be changed in place. `data` and `len` may be changed
 * within the rooms, as inco_push and the like do; a packet that reaches beyond them is dropped.
 */
struct inco_packet {
    uint8_t *data;
    uint32_t len;      /* bytes of the frame, at least 1 */
    uint32_t headroom; /* bytes free before it, at first 128 */
    uint32_t tailroom; /* bytes free behind it, at first at least 128 */
    uint8_t verdict;   /* at first INCO_FORWARD */
    uint8_t port;      /* at first the opposite one; with one port, that from which it came */
    uint8_t reason;    /* an index into the function's reasons */
    uint8_t reserved;
};

/* What the function holds now. */
struct inco_summary {
    uint64_t entries;     /* of its configuration */
    uint64_t flows;       /* or keys, of which it has state */
    uint64_t flows_limit; /* of which it can have */
};

/* Where new packets go. It is valid during the call that has got it. */
struct inco_outbox;

struct inco_function {
    uint32_t version; /* INCO_FUNCTION_VERSION */
    const char *name; /* as in `inco-nf NAME` */
    const char *help;
    const struct inco_number *reasons; /* why it drops packets; the runner counts them */
    size_t reasons_count;
    const struct inco_number *metrics; /* what `values` gives */
    size_t metrics_count;

    /*
     * Makes a configuration of its text, which does not end with a zero byte. NULL if the text is wrong; then `error`
     * has a string that says what is, of at most `error_bytes` bytes with its zero.
     */
    void *(*compile)(const char *text, size_t bytes, const struct inco_setup *setup, char *error,
                     size_t error_bytes);
    /* Frees a configuration. */
    void (*free_configuration)(void *configuration);
    /* Makes the function, which owns the configuration from then on. Must not give NULL. */
    void *(*create)(void *configuration, const struct inco_setup *setup);
    /* Takes a new configuration, and gives back the one before, which is freed later. Must not give NULL. */
    void *(*reload)(void *function, void *configuration);
    /* Works on packets that came from `port`. `now_ns` is the monotonic clock. */
    void (*process)(void *function, struct inco_packet *packets, size_t count, uint8_t port,
                    struct inco_outbox *outbox, uint64_t now_ns);
    /* Frees the function with its configuration. */
    void (*destroy)(void *function);

    /* The others may be NULL. */
    /* When tick is to be called: a time, or INCO_NEVER. Asked after each burst. */
    uint64_t (*due)(const void *function);
    /* Does what time requires. */
    void (*tick)(void *function, struct inco_outbox *outbox, uint64_t now_ns);
    /* Writes the values of `metrics`, as many, in their order. */
    void (*values)(const void *function, uint64_t *values);
    void (*summary)(const void *function, struct inco_summary *summary);
};

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
/* The library has this layout, that of machines with 64 bits. */
_Static_assert(sizeof(struct inco_number) == 24 && sizeof(struct inco_setup) == 16 &&
                   sizeof(struct inco_packet) == 24 && sizeof(struct inco_function) == 136 &&
                   sizeof(struct inco_summary) == 24,
               "not the layout of libinco_function.a");
#endif

/* Runs the program with the library of inco and these functions, until SIGTERM. Gives its exit status. */
int inco_main(int argc, char **argv, const struct inco_function *const *functions, size_t count);

/* Sends a copy of a frame by a port. False if it is empty or too long, or if there is no room for it. */
bool inco_send(struct inco_outbox *outbox, const uint8_t *frame, size_t bytes, uint8_t port);

/* Puts bytes before the frame. Gives the first one, or NULL and no change if there is no room. */
static inline uint8_t *inco_push(struct inco_packet *packet, uint32_t bytes) {
    if (bytes > packet->headroom)
        return NULL;
    packet->data -= bytes;
    packet->len += bytes;
    packet->headroom -= bytes;
    return packet->data;
}

/* Takes bytes off the front. False and no change if none were left. */
static inline bool inco_pull(struct inco_packet *packet, uint32_t bytes) {
    if (bytes >= packet->len)
        return false;
    packet->data += bytes;
    packet->len -= bytes;
    packet->headroom += bytes;
    return true;
}

/* Puts bytes behind the frame. Gives the first one, or NULL and no change if there is no room. */
static inline uint8_t *inco_put(struct inco_packet *packet, uint32_t bytes) {
    if (bytes > packet->tailroom)
        return NULL;
    uint8_t *first = packet->data + packet->len;
    packet->len += bytes;
    packet->tailroom -= bytes;
    return first;
}

/* Cuts the frame to so many bytes. False and no change if it has not more than them, or if none were left. */
static inline bool inco_trim(struct inco_packet *packet, uint32_t len) {
    if (len == 0 || len >= packet->len)
        return false;
    packet->tailroom += packet->len - len;
    packet->len = len;
    return true;
}

static inline void inco_drop(struct inco_packet *packet, uint8_t reason) {
    packet->verdict = INCO_DROP;
    packet->reason = reason;
}

#ifdef __cplusplus
}
#endif

#endif
