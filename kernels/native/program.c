/* Runs phases of work on torch's own threads. */

#include <time.h>

#include "common.h"

/* How often a thread looks whether a phase is done before it lets others run: some ten microseconds. */
enum { LOOKS = 1000 };

INLINE void pause_thread(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static i64 nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (i64)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Adds the time since the end of the phase before. */
static void count_time(Program *program, Kind kind) {
    i64 now = nanoseconds();
    program->seconds[kind] += (double)(now - program->began) * 1e-9;
    program->began = now;
}

static void run_phase(Program *program, Phase *phase) {
    for (;;) {
        i64 index = __atomic_fetch_add(&phase->next, 1, __ATOMIC_RELAXED);
        if (index >= phase->count) break;
        phase->item(phase->arguments, index);
        if (program->seconds && __atomic_load_n(&phase->done, __ATOMIC_ACQUIRE) == phase->count - 1)
            count_time(program, phase->kind); /* the last item: all others wait for it */
        __atomic_fetch_add(&phase->done, 1, __ATOMIC_ACQ_REL);
    }
    for (int looks = 0; __atomic_load_n(&phase->done, __ATOMIC_ACQUIRE) < phase->count; looks++)
        if (looks < LOOKS)
            pause_thread();
        else
            sched_yield();
}

static void run_program(void *state) {
    Program *program = state;
    for (i64 i = 0; i < program->count; i++) run_phase(program, &program->phases[i]);
}

void run(Parallel parallel, int threads, Program *program) {
    i64 most = 0;
    for (i64 i = 0; i < program->count; i++) most = larger(most, program->phases[i].count);
    threads = (int)smaller(threads, most);
    if (program->seconds) program->began = nanoseconds();
    if (parallel == 0 || threads < 2)
        run_program(program);
    else
        parallel(run_program, program, (unsigned)threads, 0);
}
