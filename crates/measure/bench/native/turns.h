/* A peer that takes turns: for each line of its input, which is a number of nanoseconds, it works for so much CPU time,
 * and answers with the number of packets and the nanoseconds that it took. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned long long cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1000000000ull * time.tv_sec + time.tv_nsec;
}

/* `work` works on some packets and returns their number, 0 if it fails. */
static int take_turns(unsigned long (*work)(void))
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long wanted = strtoull(line, 0, 10), start = cpu_ns(), spent;
        unsigned long packets = 0;
        do {
            unsigned long more = work();
            if (!more)
                return 1;
            packets += more;
            spent = cpu_ns() - start;
        } while (spent < wanted);
        printf("%lu %llu\n", packets, spent);
        fflush(stdout);
    }
    return 0;
}
