/* Preloaded into a Redis server, moves its wall clock, and nothing else: monotonic clocks go on as they are.
 *
 * The environment names a file of eight bytes, a signed offset in microseconds of this machine's byte order. It is mapped,
 * so that a step takes effect with the next look at the clock. With STREAM_REAPER_CLOCK_STANDS in the environment the number
 * is the time itself, and the clock stands still there. Built by `tests.support.clock` where a C compiler is at hand.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_us;
static int stands;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("STREAM_REAPER_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    offset_us = mapped;
    stands = getenv("STREAM_REAPER_CLOCK_STANDS") != NULL;
}

static int64_t shifted_us(void) {
    if (stands) return *offset_us;
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    int64_t us = shifted_us();
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME) return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = shifted_us();
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

time_t time(time_t *result) {
    time_t seconds = shifted_us() / 1000000;
    if (result) *result = seconds;
    return seconds;
}
