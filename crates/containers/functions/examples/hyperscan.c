/* The rate of Hyperscan: hyperscan PATTERNS PAYLOADS BYTES ROUNDS prints Gbit/s. PATTERNS has one literal a line, whose
 * case does not count; PAYLOADS has payloads of BYTES each. See ids_rate.rs. */
#include <hs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int found(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *count)
{
    (void)id, (void)from, (void)to, (void)flags;
    ++*(unsigned long *)count;
    return 0;
}

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static char *read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        exit(1);
    fseek(file, 0, SEEK_END);
    *len = ftell(file);
    rewind(file);
    char *bytes = malloc(*len + 1);
    if (!bytes || fread(bytes, 1, *len, file) != *len)
        exit(1);
    bytes[*len] = 0;
    fclose(file);
    return bytes;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    size_t text_len, len;
    char *text = read_file(argv[1], &text_len), *payloads = read_file(argv[2], &len);
    size_t bytes = strtoul(argv[3], 0, 10), rounds = strtoul(argv[4], 0, 10), count = 0;
    const char **patterns = malloc(text_len * sizeof *patterns);
    unsigned *flags = malloc(text_len * sizeof *flags), *ids = malloc(text_len * sizeof *ids);
    size_t *lens = malloc(text_len * sizeof *lens);
    for (char *word = strtok(text, "\n"); word; word = strtok(0, "\n")) {
        patterns[count] = word, lens[count] = strlen(word), ids[count] = count;
        flags[count++] = HS_FLAG_CASELESS;
    }
    hs_database_t *database;
    hs_compile_error_t *error;
    if (hs_compile_lit_multi(patterns, flags, ids, lens, count, HS_MODE_BLOCK, 0, &database, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    hs_scratch_t *scratch = 0;
    if (hs_alloc_scratch(database, &scratch))
        return 1;
    unsigned long matches = 0;
    double best = 1e300;
    for (size_t round = 0; round < rounds; ++round) {
        double start = now_ns();
        for (size_t at = 0; at + bytes <= len; at += bytes)
            hs_scan(database, payloads + at, bytes, 0, scratch, found, &matches);
        double spent = now_ns() - start;
        best = spent < best ? spent : best;
    }
    printf("%.3f\n", 8 * (double)(len / bytes * bytes) / best);
    return 0;
}
