/* Hyperscan: hyperscan PATTERNS PAYLOADS BYTES. PATTERNS has one literal a line, whose case does not count; PAYLOADS has
 * payloads of BYTES each. It takes turns as turns.h says; a packet is a payload. */
#include "turns.h"
#include <hs.h>
#include <string.h>

static hs_database_t *database;
static hs_scratch_t *scratch;
static char *payloads;
static size_t len, bytes, at;
static unsigned long matches;

static int found(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *count)
{
    (void)id, (void)from, (void)to, (void)flags;
    ++*(unsigned long *)count;
    return 0;
}

static char *read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        exit(1);
    fseek(file, 0, SEEK_END);
    *len = ftell(file);
    rewind(file);
    char *text = malloc(*len + 1);
    if (!text || fread(text, 1, *len, file) != *len)
        exit(1);
    text[*len] = 0;
    fclose(file);
    return text;
}

static unsigned long burst(void)
{
    for (int packet = 0; packet < 32; packet++) {
        if (hs_scan(database, payloads + at, bytes, 0, scratch, found, &matches))
            return 0;
        at = at + 2 * bytes <= len ? at + bytes : 0;
    }
    return 32;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t text_len, count = 0;
    char *text = read_file(argv[1], &text_len);
    payloads = read_file(argv[2], &len);
    bytes = strtoul(argv[3], 0, 10);
    const char **patterns = malloc(text_len * sizeof *patterns);
    unsigned *flags = malloc(text_len * sizeof *flags), *ids = malloc(text_len * sizeof *ids);
    size_t *lens = malloc(text_len * sizeof *lens);
    for (char *word = strtok(text, "\n"); word; word = strtok(0, "\n")) {
        patterns[count] = word, lens[count] = strlen(word), ids[count] = count;
        flags[count++] = HS_FLAG_CASELESS;
    }
    hs_compile_error_t *error;
    if (!bytes || len < bytes ||
        hs_compile_lit_multi(patterns, flags, ids, lens, count, HS_MODE_BLOCK, 0, &database, &error) ||
        hs_alloc_scratch(database, &scratch))
        return 1;
    return take_turns(burst);
}
