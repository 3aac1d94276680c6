/* Attention over KV in floats (attention.h). */

#include "attention.h"

static void attend_f32(const void *a, i64 index) { attend_item(a, index, 0, 0); }
static void attend_bf16(const void *a, i64 index) { attend_item(a, index, 1, 0); }

Phase attention_phase(const AttentionOp *a, int is_bf16) {
    i64 items = slots_of(a) * (a->num_kv_heads / heads_of_item(a));
    if (a->kv.scales) return phase(ATTENTION, items, is_bf16 ? attend_whole_bf16 : attend_whole_f32, a);
    return phase(ATTENTION, items, is_bf16 ? attend_bf16 : attend_f32, a);
}
