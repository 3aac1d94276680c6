/* Ops of a decoder layer that compute each row, or each token, alone. All arithmetic is in float32.
 *
 * The formulas are those of kernels/add_rms_norm, gated_activation and rope_store_kv. Loops are written for the
 * compiler to vectorise: every function takes the type as a constant and is compiled once for each.
 */

#include "ops.h"

INLINE i64 place_of(const i64 *places, i64 row) { return places ? places[row] : row; }

/* add_rms_norm */

INLINE Vector weighted(Vector numbers, Vector weights, int unit_offset, int is_bf16) {
    return unit_offset ? numbers * (1.0f + weights) : rounded_vector(numbers, is_bf16) * weights;
}

INLINE void norm_row(const NormOp *a, i64 row, int is_bf16) {
    const void *x = at(a->x, row * a->stride_x, is_bf16), *source = x;
    void *out = at(a->out, place_of(a->out_places, row) * a->size, is_bf16);
    Vector squares = {0};
    if (a->residual) {
        void *residual = at(a->residual, place_of(a->residual_places, row) * a->stride_residual, is_bf16);
        for (i64 i = 0; i < a->size; i += WIDTH) {
            i64 count = smaller(a->size - i, WIDTH);
            Vector sum = get_part(x, i, count, is_bf16) + get_part(residual, i, count, is_bf16);
            put_part(residual, i, count, sum, is_bf16);
        }
        source = residual;
    }
    for (i64 i = 0; i < a->size; i += WIDTH) {
        Vector part = get_part(source, i, smaller(a->size - i, WIDTH), is_bf16);
        squares += part * part;
    }
    float scale = 1.0f / sqrtf(sum_of(squares) / (float)a->size + a->eps);
    for (i64 i = 0; i < a->size; i += WIDTH) {
        i64 count = smaller(a->size - i, WIDTH);
        Vector normed = get_part(source, i, count, is_bf16) * scale, weight = get_part(a->weight, i, count, is_bf16);
        put_part(out, i, count, weighted(normed, weight, a->unit_offset, is_bf16), is_bf16);
    }
}

static void norm_f32(const void *a, i64 row) { norm_row(a, row, 0); }
static void norm_bf16(const void *a, i64 row) { norm_row(a, row, 1); }

Phase norm_phase(const NormOp *a, int is_bf16) {
    return phase(OTHER_OPS, a->rows, is_bf16 ? norm_bf16 : norm_f32, a);
}

/* gated_activation */

enum { SILU, GELU_TANH, GELU };
enum { COLUMNS = 2048 }; /* of one item: even one token of a wide MLP is shared by the threads */

INLINE void gate_piece(const GateOp *a, i64 index, int is_bf16) {
    i64 pieces = pieces_of(a->size, COLUMNS), row = index / pieces, first = index % pieces * COLUMNS;
    i64 last = smaller(first + COLUMNS, a->size);
    const void *gate = at(a->gate_up, row * a->stride, is_bf16);
    const void *up = at(gate, a->size, is_bf16);
    void *out = at(a->out, row * a->size, is_bf16);
    if (a->activation == GELU) {
        for (i64 i = first; i < last; i++) {
            float x = get(gate, i, is_bf16);
            put(out, i, 0.5f * x * (1.0f + erff(x * 0.70710678f)) * get(up, i, is_bf16), is_bf16);
        }
        return;
    }
    for (i64 i = first; i < last; i += WIDTH) {
        i64 count = smaller(last - i, WIDTH);
        Vector x = get_part(gate, i, count, is_bf16), steep = x;
        if (a->activation == GELU_TANH) steep = 1.59576912f * (x + 0.044715f * x * x * x); /* 2 sqrt(2 / pi) */
        Vector gated = x / (1.0f + exp2_of(-LOG2_E * steep));
        put_part(out, i, count, gated * get_part(up, i, count, is_bf16), is_bf16);
    }
}

static void gate_f32(const void *a, i64 index) { gate_piece(a, index, 0); }
static void gate_bf16(const void *a, i64 index) { gate_piece(a, index, 1); }

Phase gate_phase(const GateOp *a, int is_bf16) {
    return phase(OTHER_OPS, a->rows * pieces_of(a->size, COLUMNS), is_bf16 ? gate_bf16 : gate_f32, a);
}

/* rope_store_kv */

INLINE void rotate_head(const RopeOp *a, const void *source, void *target, const void *norm, const void *cos,
                        const void *sin, int is_bf16) {
    float head[MAX_HEAD_DIM + WIDTH];
    i64 size = a->head_dim, half = a->half;
    Vector squares = {0};
    for (i64 d = 0; d < size; d += WIDTH) {
        Vector part = get_part(source, d, smaller(size - d, WIDTH), is_bf16);
        memcpy(head + d, &part, sizeof part);
        squares += part * part;
    }
    if (norm) {
        float scale = 1.0f / sqrtf(sum_of(squares) / (float)size + a->eps);
        for (i64 d = 0; d < size; d += WIDTH) {
            Vector normed = get_vector(head, d, 0) * scale;
            Vector weight = get_part(norm, d, smaller(size - d, WIDTH), is_bf16);
            normed = rounded_vector(weighted(normed, weight, a->unit_offset, is_bf16), is_bf16);
            memcpy(head + d, &normed, sizeof normed);
        }
    }
    for (i64 d = 0; d < half; d += WIDTH) {
        i64 count = smaller(half - d, WIDTH);
        Vector c = get_part(cos, d, count, is_bf16), s = get_part(sin, d, count, is_bf16);
        Vector first = get_vector(head, d, 0), second = get_vector(head, half + d, 0);
        put_part(target, d, count, first * c - second * s, is_bf16);
        put_part(target, half + d, count, second * c + first * s, is_bf16);
    }
    for (i64 d = 2 * half; d < size; d += WIDTH)
        put_part(target, d, smaller(size - d, WIDTH), get_vector(head, d, 0), is_bf16);
}

/* The bytes and the scale of a row, as kernels/store_kv/quantise.py makes them, with the same bits. */
INLINE void store_whole(const void *row, int8_t *target, float *scale, i64 size, int is_bf16) {
    const float limit = 127.0f;
    float most = 0.0f;
    for (i64 d = 0; d < size; d++) {
        float number = fabsf(get(row, d, is_bf16));
        if (!(number <= most)) most = number <= FLT_MAX ? number : INFINITY;
    }
    *scale = most / limit;
    int is_usable = *scale > 0.0f && *scale <= FLT_MAX;
    for (i64 d = 0; d < size; d++) {
        float number = is_usable ? get(row, d, is_bf16) / *scale : 0.0f;
        number = number < -limit ? -limit : number > limit ? limit : number;
        /* What is added to 1.5 * 2^23 is rounded to a whole number, halves to even. */
        target[d] = (int8_t)((int32_t)to_bits(number + 12582912.0f) - 0x4b400000);
    }
}

INLINE void store_head(const RopeOp *a, i64 slot, i64 head, i64 kind, const void *row, int is_bf16) {
    const Kv *kv = &a->kv;
    i64 block = slot / a->block_size, offset = slot % a->block_size;
    i64 place = block * kv->block + kind * kv->kind + offset * kv->slot + head * kv->head;
    if (kv->scales) {
        float *scale = kv->scales + block * kv->scale_block + kind * kv->scale_kind + head * kv->scale_head + offset;
        store_whole(row, (int8_t *)kv->numbers + place, scale, a->head_dim, is_bf16);
    } else {
        memcpy(at(kv->numbers, place, is_bf16), row, (size_t)a->head_dim * (is_bf16 ? 2 : 4));
    }
}

INLINE void rope_token(const RopeOp *a, i64 token, int is_bf16) {
    const void *cos = at(a->cos, token * a->cos_token, is_bf16);
    const void *sin = at(a->sin, token * a->sin_token, is_bf16);
    i64 place = place_of(a->out_places, token);
    for (i64 h = 0; place >= 0 && h < a->num_q_heads; h++) {
        const void *source = at(a->query, token * a->query_token + h * a->query_head, is_bf16);
        void *target = at(a->out, (place * a->num_q_heads + h) * a->head_dim, is_bf16);
        rotate_head(a, source, target, a->query_norm, cos, sin, is_bf16);
    }
    i64 slot = a->slots[token];
    if (slot < 0) return;
    for (i64 h = 0; h < a->num_kv_heads; h++) {
        const void *key = at(a->key, token * a->key_token + h * a->key_head, is_bf16);
        float rotated[MAX_HEAD_DIM];
        rotate_head(a, key, rotated, a->key_norm, cos, sin, is_bf16);
        store_head(a, slot, h, KEYS, rotated, is_bf16);
        store_head(a, slot, h, VALUES, at(a->value, token * a->value_token + h * a->value_head, is_bf16), is_bf16);
    }
}

static void rope_f32(const void *a, i64 token) { rope_token(a, token, 0); }
static void rope_bf16(const void *a, i64 token) { rope_token(a, token, 1); }

Phase rope_phase(const RopeOp *a, int is_bf16) {
    return phase(OTHER_OPS, a->tokens, is_bf16 ? rope_bf16 : rope_f32, a);
}

/* x *= factor */

INLINE void scale_row(const ScaleOp *a, i64 row, int is_bf16) {
    void *x = at(a->x, row * a->size, is_bf16);
    for (i64 i = 0; i < a->size; i++) put(x, i, get(x, i, is_bf16) * a->factor, is_bf16);
}

static void scale_f32(const void *a, i64 row) { scale_row(a, row, 0); }
static void scale_bf16(const void *a, i64 row) { scale_row(a, row, 1); }

Phase scale_phase(const ScaleOp *a, int is_bf16) {
    return phase(OTHER_OPS, a->rows, is_bf16 ? scale_bf16 : scale_f32, a);
}
