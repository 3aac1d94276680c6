/* Runs phases of work on torch's own threads. */

#include <time.h>

#include "common.h"

static i64 nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (i64)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void run_phase(Phase *phase, int is_timed) {
    for (;;) {
        i64 index = __atomic_fetch_add(&phase->next, 1, __ATOMIC_RELAXED);
        if (index >= phase->count) break;
        phase->item(phase->arguments, index);
        i64 before = __atomic_fetch_add(&phase->done, 1, __ATOMIC_RELEASE);
        if (is_timed && before == phase->count - 1) phase->ended = nanoseconds();
    }
    for (int looks = 0; __atomic_load_n(&phase->done, __ATOMIC_ACQUIRE) < phase->count; looks++)
        if (looks < LOOKS)
            pause_thread();
        else
            sched_yield();
}

static void run_program(void *state) {
    const Program *program = state;
    for (i64 i = 0; i < program->count; i++) run_phase(&program->phases[i], program->seconds != 0);
}

void run(Parallel parallel, int threads, const Program *program) {
    i64 most = 0, began = program->seconds ? nanoseconds() : 0;
    for (i64 i = 0; i < program->count; i++) most = larger(most, program->phases[i].count);
    threads = (int)smaller(threads, most);
    if (parallel == 0 || threads < 2)
        run_program((void *)program);
    else
        parallel(run_program, (void *)program, (unsigned)threads, 0);
    if (!program->seconds) return;
    for (i64 i = 0; i < program->count; i++) {
        const Phase *phase = &program->phases[i];
        if (phase->count == 0) continue;
        program->seconds[phase->kind] += (double)(phase->ended - began) * 1e-9;
        began = phase->ended;
    }
}
