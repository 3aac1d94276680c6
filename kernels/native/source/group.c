/* Processes that compute parts of the same layers: how they wait for each other and add up what they have. */

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops.h"

/* How often a process looks for the others before it sleeps: some half a millisecond, which is longer than most
 * waits on an idle machine and shorter than the turn of another program on a busy one. */
enum { MEETING_LOOKS = 40 * LOOKS };

static void *slot_of(const Group *group, i64 turn, i64 rank) {
    return group->slots + (turn % 2 * group->size + rank) * group->slot_bytes;
}

void *own_slot(const Group *group, i64 turn) { return slot_of(group, turn, group->rank); }

/* The meeting that comes `number` meetings after the last one. Counts may wrap around. */
MeetOp meeting_of(const Group *group, i64 number) {
    return (MeetOp){group, (uint32_t)((group->meetings + number) * group->size)};
}

static void futex(uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation, value, (void *)0, (void *)0, 0);
}

/* Each process arrives once at each meeting, so no arrival at the next one can come before this one is complete.
 * Whoever arrives while others sleep wakes them: it counts itself first, and they say that they sleep first. */
static void meet(const void *arguments, i64 index) {
    const MeetOp *a = arguments;
    uint32_t *arrived = a->group->arrived, *sleeping = a->group->sleeping, seen;
    (void)index;
    __atomic_fetch_add(arrived, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(sleeping, __ATOMIC_SEQ_CST)) futex(arrived, FUTEX_WAKE, INT_MAX);
    for (int looks = 0; (int32_t)((seen = __atomic_load_n(arrived, __ATOMIC_ACQUIRE)) - a->arrivals) < 0; looks++) {
        if (looks < MEETING_LOOKS) {
            pause_thread();
            continue;
        }
        __atomic_fetch_add(sleeping, 1, __ATOMIC_SEQ_CST);
        futex(arrived, FUTEX_WAIT, seen); /* returns at once if more have arrived since */
        __atomic_fetch_sub(sleeping, 1, __ATOMIC_SEQ_CST);
    }
}

Phase meet_phase(const MeetOp *a) { return phase(OTHER_OPS, 1, meet, a); }

INLINE void sum_row(const SumOp *a, i64 row, int is_bf16) {
    i64 begin = row * a->size;
    for (i64 i = begin; i < begin + a->size; i += WIDTH) {
        i64 count = smaller(begin + a->size - i, WIDTH);
        Vector sum = get_part(slot_of(a->group, a->turn, 0), i, count, is_bf16);
        for (i64 rank = 1; rank < a->group->size; rank++)
            sum += get_part(slot_of(a->group, a->turn, rank), i, count, is_bf16);
        put_part(a->out, i, count, sum, is_bf16);
    }
}

static void sum_f32(const void *a, i64 row) { sum_row(a, row, 0); }
static void sum_bf16(const void *a, i64 row) { sum_row(a, row, 1); }

Phase sum_phase(const SumOp *a, int is_bf16) { return phase(OTHER_OPS, a->rows, is_bf16 ? sum_bf16 : sum_f32, a); }

/* Waits for the other processes, once. */
void baton_meet(Parallel parallel, int threads, int is_bf16, Group *group) {
    MeetOp meeting = meeting_of(group, 1);
    (void)parallel, (void)threads, (void)is_bf16;
    meet(&meeting, 0);
    group->meetings++;
}
