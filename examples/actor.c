// An actor in WebAssembly, in C: it answers each message with its body and the number of messages so far, 8 bytes, the
// lowest first. The number is in memory, so it moves with the actor. docs/tasks/own-actor.md has the command that builds it.
#include <stdint.h>

#define IMPORT __attribute__((import_module("inco"), import_name("send")))
#define EXPORT(name) __attribute__((export_name(name)))

IMPORT void send(int32_t outside, int64_t to, int32_t kind, const uint8_t *at, uint32_t bytes);

enum { LONGEST = 2048 };

// Bodies are put here. The count that an answer ends with has room behind the longest.
static uint8_t inbox[LONGEST + sizeof(uint64_t)];
static uint64_t count;

EXPORT("inbox") uint8_t *inbox_at(void) { return inbox; }
EXPORT("inbox_bytes") uint32_t inbox_bytes(void) { return LONGEST; }

EXPORT("exec") int32_t exec(int32_t kind, int32_t outside, int64_t from, uint32_t bytes) {
    // Of a longer body only the beginning is there.
    if (bytes > LONGEST)
        bytes = LONGEST;
    count++;
    for (uint32_t i = 0; i < sizeof count; i++)
        inbox[bytes + i] = (uint8_t)(count >> 8 * i);
    send(outside, from, kind, inbox, bytes + sizeof count);
    // The message has ended.
    return 0;
}
