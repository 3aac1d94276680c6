/* Attention over KV of 8 bits (attention.h), compiled beside that over floats: each takes its time. */

#include "attention.h"

void attend_whole_f32(const void *a, i64 index) { attend_item(a, index, 0, 1); }
void attend_whole_bf16(const void *a, i64 index) { attend_item(a, index, 1, 1); }
