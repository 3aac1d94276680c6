/* LoRA adapters: out += (x down^T) up for the rows of each adapter, over a linear layer's outputs. */

#include "ops.h"

enum { MAX_RANK = 512, SPAN = 4 * WIDTH };

/* The sum of products of two rows. */
INLINE float product_with(const void *x, const void *weight, i64 size, int is_bf16) {
    Vector sums[4] = {{0}, {0}, {0}, {0}};
    i64 i = 0;
    for (; i + SPAN <= size; i += SPAN)
        for (int v = 0; v < 4; v++)
            sums[v] += get_vector(x, i + v * WIDTH, is_bf16) * get_vector(weight, i + v * WIDTH, is_bf16);
    for (; i < size; i += WIDTH) {
        i64 width = smaller(size - i, WIDTH);
        sums[0] += get_part(x, i, width, is_bf16) * get_part(weight, i, width, is_bf16);
    }
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* out[0:width] += sum of factors[r] * up[r][0:width] */
INLINE void add_span(void *out, const void *up, i64 stride, const float *factors, i64 rank, i64 width, int is_bf16) {
    for (i64 i = 0; i < width; i += WIDTH) {
        i64 part = smaller(width - i, WIDTH);
        Vector sum = {0};
        for (i64 r = 0; r < rank; r++) sum += factors[r] * get_part(up, r * stride + i, part, is_bf16);
        put_part(out, i, part, get_part(out, i, part, is_bf16) + sum, is_bf16);
    }
}

INLINE void add_full_span(void *out, const void *up, i64 stride, const float *factors, i64 rank, int is_bf16) {
    Vector sums[4] = {{0}, {0}, {0}, {0}};
    for (i64 r = 0; r < rank; r++)
        for (int v = 0; v < 4; v++) sums[v] += factors[r] * get_vector(up, r * stride + v * WIDTH, is_bf16);
    for (int v = 0; v < 4; v++)
        put_vector(out, v * WIDTH, get_vector(out, v * WIDTH, is_bf16) + sums[v], is_bf16);
}

/* An item is one block of rows in one part: what it reads of the adapter stays in the cache for all its rows. */
INLINE void adapter_block(const AdapterOp *a, i64 index, int is_bf16) {
    const AdapterPart *part = &a->parts[index % a->num_parts];
    const AdapterBlock *block = &a->rows->blocks[index / a->num_parts];
    i64 rank = part->ranks[block->slot], first = block->slot * part->most_rank, outputs = part->outputs;
    const void *down = at(part->down, first * a->inputs, is_bf16), *up = at(part->up, first * outputs, is_bf16);
    for (i64 i = block->begin; i < block->end; i++) {
        i64 row = a->rows->rows[i];
        const void *x = at(a->x, row * a->stride_x, is_bf16);
        void *out = at(a->out, row * a->outputs + part->first, is_bf16);
        float factors[MAX_RANK];
        for (i64 r = 0; r < rank; r++)
            factors[r] = product_with(x, at(down, r * a->inputs, is_bf16), a->inputs, is_bf16);
        i64 j = 0;
        for (; j + SPAN <= outputs; j += SPAN)
            add_full_span(at(out, j, is_bf16), at(up, j, is_bf16), outputs, factors, rank, is_bf16);
        if (j < outputs)
            add_span(at(out, j, is_bf16), at(up, j, is_bf16), outputs, factors, rank, outputs - j, is_bf16);
    }
}

static void adapter_f32(const void *a, i64 index) { adapter_block(a, index, 0); }
static void adapter_bf16(const void *a, i64 index) { adapter_block(a, index, 1); }

Phase adapter_phase(const AdapterOp *a, int is_bf16) {
    return phase(PRODUCTS, a->rows->num_blocks * a->num_parts, is_bf16 ? adapter_bf16 : adapter_f32, a);
}
