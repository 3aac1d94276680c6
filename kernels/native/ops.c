/* Ops of a decoder layer on a processor, over rows of float32 or bfloat16. All arithmetic is in float32.
 *
 * The formulas are those of kernels/add_rms_norm, gated_activation, rope_store_kv and paged_decode. A row's
 * result depends on that row alone, and on the width of the processor's vectors. Loops are written for the
 * compiler to vectorise: every function takes the type as a constant and is compiled once for each.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef int64_t i64;

/* The entry point of the OpenMP runtime that torch has loaded, so that both share one pool of threads. */
typedef void (*Parallel)(void (*body)(void *), void *state, unsigned threads, unsigned flags);

/* Work for n items, which threads take one by one. */
typedef struct {
    void (*item)(const void *arguments, i64 index);
    const void *arguments;
    i64 count, next;
} Work;

static void take_items(void *state) {
    Work *work = state;
    for (;;) {
        i64 index = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (index >= work->count) return;
        work->item(work->arguments, index);
    }
}

static void for_each(Parallel parallel, int threads, i64 count, void (*item)(const void *, i64),
                     const void *arguments) {
    Work work = {item, arguments, count, 0};
    if (parallel == 0 || threads < 2 || count < 2)
        take_items(&work);
    else
        parallel(take_items, &work, (unsigned)(count < threads ? count : threads), 0);
}

/* Reading and writing one number of either type. */

INLINE float from_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

INLINE uint32_t to_bits(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

INLINE float get(const void *row, i64 index, int is_bf16) {
    return is_bf16 ? from_bits((uint32_t)((const uint16_t *)row)[index] << 16) : ((const float *)row)[index];
}

INLINE void put(void *row, i64 index, float number, int is_bf16) {
    if (!is_bf16) {
        ((float *)row)[index] = number;
        return;
    }
    /* Round to the nearest, ties to even; a NaN stays one. */
    uint32_t bits = to_bits(number), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    ((uint16_t *)row)[index] = (uint16_t)(number == number ? rounded : 0x7fc0u);
}

INLINE float rounded(float number, int is_bf16) {
    uint16_t bits;
    if (!is_bf16) return number;
    put(&bits, 0, number, 1);
    return from_bits((uint32_t)bits << 16);
}

INLINE void *at(const void *base, i64 index, int is_bf16) {
    return (char *)base + index * (is_bf16 ? 2 : 4);
}

/* e^x by Cody and Waite's reduction and a polynomial of degree 6, within 2 units in the last place;
 * 0 below -87 and infinity above 88. */
INLINE float exp_of(float x) {
    float bounded = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float whole = rintf(bounded * 1.44269504f);
    float rest = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    float power = from_bits((uint32_t)((int32_t)whole + 127) << 23);
    return x != x ? x : x < -87.0f ? 0.0f : x > 88.0f ? INFINITY : sum * power;
}

/* add_rms_norm */

typedef struct {
    const void *x;
    void *residual; /* or null */
    const void *weight;
    void *out;
    i64 stride_x, stride_residual, size;
    float eps;
    int unit_offset;
} Norm;

INLINE float weighted(float number, float weight, int unit_offset, int is_bf16) {
    return unit_offset ? number * (1.0f + weight) : rounded(number, is_bf16) * weight;
}

INLINE void norm_row(const Norm *a, i64 row, int is_bf16) {
    const void *x = at(a->x, row * a->stride_x, is_bf16);
    void *out = at(a->out, row * a->size, is_bf16);
    const void *source = x;
    float squares = 0.0f;
    if (a->residual) {
        void *residual = at(a->residual, row * a->stride_residual, is_bf16);
        for (i64 i = 0; i < a->size; i++) {
            float sum = rounded(get(x, i, is_bf16) + get(residual, i, is_bf16), is_bf16);
            put(residual, i, sum, is_bf16);
            squares += sum * sum;
        }
        source = residual;
    } else {
        for (i64 i = 0; i < a->size; i++) squares += get(x, i, is_bf16) * get(x, i, is_bf16);
    }
    float scale = 1.0f / sqrtf(squares / (float)a->size + a->eps);
    for (i64 i = 0; i < a->size; i++) {
        float normed = get(source, i, is_bf16) * scale;
        put(out, i, weighted(normed, get(a->weight, i, is_bf16), a->unit_offset, is_bf16), is_bf16);
    }
}

static void norm_f32(const void *a, i64 row) { norm_row(a, row, 0); }
static void norm_bf16(const void *a, i64 row) { norm_row(a, row, 1); }

void baton_add_rms_norm(Parallel parallel, int threads, int is_bf16, i64 rows, const Norm *a) {
    for_each(parallel, threads, rows, is_bf16 ? norm_bf16 : norm_f32, a);
}

/* gated_activation */

enum { SILU, GELU_TANH, GELU };
enum { COLUMNS = 2048 }; /* of one item: even one token of a wide MLP is shared by the threads */

typedef struct {
    const void *gate_up;
    void *out;
    i64 stride, size, pieces;
    int activation;
} Gate;

INLINE void gate_piece(const Gate *a, i64 index, int is_bf16) {
    i64 row = index / a->pieces, first = index % a->pieces * COLUMNS;
    i64 last = first + COLUMNS < a->size ? first + COLUMNS : a->size;
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
    if (a->activation == GELU_TANH) {
        for (i64 i = first; i < last; i++) {
            float x = get(gate, i, is_bf16);
            float steep = 1.59576912f * (x + 0.044715f * x * x * x); /* 2 sqrt(2 / pi) */
            put(out, i, x / (1.0f + exp_of(-steep)) * get(up, i, is_bf16), is_bf16);
        }
        return;
    }
    for (i64 i = first; i < last; i++) {
        float x = get(gate, i, is_bf16);
        put(out, i, x / (1.0f + exp_of(-x)) * get(up, i, is_bf16), is_bf16);
    }
}

static void gate_f32(const void *a, i64 index) { gate_piece(a, index, 0); }
static void gate_bf16(const void *a, i64 index) { gate_piece(a, index, 1); }

void baton_gated_activation(Parallel parallel, int threads, int is_bf16, i64 rows, const Gate *a) {
    for_each(parallel, threads, rows * a->pieces, is_bf16 ? gate_bf16 : gate_f32, a);
}

/* rope_store_kv */

enum { MAX_HEAD_DIM = 256 };

typedef struct {
    const void *query, *key, *value, *cos, *sin;
    void *kv_layer;
    const i64 *slots;
    const void *query_norm, *key_norm; /* or null */
    void *out;
    i64 query_token, query_head, key_token, key_head, value_token, value_head, cos_token, sin_token;
    i64 kv_block, kv_kind, kv_slot, kv_head;
    i64 block_size, num_q_heads, num_kv_heads, head_dim, half;
    float eps;
    int unit_offset;
} Rope;

INLINE void rotate_head(const Rope *a, const void *source, void *target, const void *norm, const void *cos,
                        const void *sin, int is_bf16) {
    float head[MAX_HEAD_DIM];
    i64 size = a->head_dim, half = a->half;
    for (i64 d = 0; d < size; d++) head[d] = get(source, d, is_bf16);
    if (norm) {
        float squares = 0.0f;
        for (i64 d = 0; d < size; d++) squares += head[d] * head[d];
        float scale = 1.0f / sqrtf(squares / (float)size + a->eps);
        for (i64 d = 0; d < size; d++) {
            float normed = weighted(head[d] * scale, get(norm, d, is_bf16), a->unit_offset, is_bf16);
            head[d] = rounded(normed, is_bf16);
        }
    }
    for (i64 d = 0; d < half; d++) {
        float c = get(cos, d, is_bf16), s = get(sin, d, is_bf16);
        put(target, d, head[d] * c - head[half + d] * s, is_bf16);
        put(target, half + d, head[half + d] * c + head[d] * s, is_bf16);
    }
    for (i64 d = 2 * half; d < size; d++) put(target, d, head[d], is_bf16);
}

INLINE void rope_token(const Rope *a, i64 token, int is_bf16) {
    const void *cos = at(a->cos, token * a->cos_token, is_bf16);
    const void *sin = at(a->sin, token * a->sin_token, is_bf16);
    for (i64 h = 0; h < a->num_q_heads; h++) {
        const void *source = at(a->query, token * a->query_token + h * a->query_head, is_bf16);
        void *target = at(a->out, (token * a->num_q_heads + h) * a->head_dim, is_bf16);
        rotate_head(a, source, target, a->query_norm, cos, sin, is_bf16);
    }
    i64 slot = a->slots[token];
    if (slot < 0) return;
    i64 block = slot / a->block_size, offset = slot % a->block_size;
    for (i64 h = 0; h < a->num_kv_heads; h++) {
        const void *key = at(a->key, token * a->key_token + h * a->key_head, is_bf16);
        const void *value = at(a->value, token * a->value_token + h * a->value_head, is_bf16);
        i64 place = block * a->kv_block + offset * a->kv_slot + h * a->kv_head;
        rotate_head(a, key, at(a->kv_layer, place, is_bf16), a->key_norm, cos, sin, is_bf16);
        memcpy(at(a->kv_layer, place + a->kv_kind, is_bf16), value, (size_t)a->head_dim * (is_bf16 ? 2 : 4));
    }
}

static void rope_f32(const void *a, i64 token) { rope_token(a, token, 0); }
static void rope_bf16(const void *a, i64 token) { rope_token(a, token, 1); }

void baton_rope_store_kv(Parallel parallel, int threads, int is_bf16, i64 tokens, const Rope *a) {
    for_each(parallel, threads, tokens, is_bf16 ? rope_bf16 : rope_f32, a);
}

/* Vectors of LANES numbers, which the compiler cuts into those of the processor. */

enum { LANES = 16 };
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

INLINE Lanes get_lanes(const void *row, i64 index, int is_bf16) {
    Lanes numbers;
    if (is_bf16) {
        Halves halves;
        memcpy(&halves, (const uint16_t *)row + index, sizeof halves);
        Bits bits = __builtin_convertvector(halves, Bits) << 16;
        memcpy(&numbers, &bits, sizeof numbers);
    } else {
        memcpy(&numbers, (const float *)row + index, sizeof numbers);
    }
    return numbers;
}

INLINE float sum_of(Lanes lanes) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

/* a . b, of which b has the type */
INLINE float dot(const float *a, const void *b, i64 size, int is_bf16) {
    Lanes sums = {0};
    i64 d = 0;
    for (; d + LANES <= size; d += LANES) sums += get_lanes(a, d, 0) * get_lanes(b, d, is_bf16);
    float sum = sum_of(sums);
    for (; d < size; d++) sum += a[d] * get(b, d, is_bf16);
    return sum;
}

/* sums += the rows, each times its weight */
INLINE void add_rows(float *sums, const float *weights, const void *const *rows, i64 offset, i64 count,
                     i64 size, int is_bf16) {
    i64 d = 0;
    for (; d + 4 * LANES <= size; d += 4 * LANES) {
        Lanes kept[4];
        for (int part = 0; part < 4; part++) kept[part] = get_lanes(sums, d + part * LANES, 0);
        for (i64 i = 0; i < count; i++) {
            const void *row = at(rows[i], offset + d, is_bf16);
            for (int part = 0; part < 4; part++) kept[part] += weights[i] * get_lanes(row, part * LANES, is_bf16);
        }
        memcpy(sums + d, kept, sizeof kept);
    }
    for (; d + LANES <= size; d += LANES) {
        Lanes kept = get_lanes(sums, d, 0);
        for (i64 i = 0; i < count; i++) kept += weights[i] * get_lanes(at(rows[i], offset, is_bf16), d, is_bf16);
        memcpy(sums + d, &kept, sizeof kept);
    }
    for (; d < size; d++)
        for (i64 i = 0; i < count; i++) sums[d] += weights[i] * get(rows[i], offset + d, is_bf16);
}

/* paged_decode: online softmax (Milakov and Gimelshein 2018) over tiles of one KV head's positions. An item is
 * one sequence and KV head, and attends for the query heads that share it. */

enum { TILE = 64, MAX_GROUP = 16 };

typedef struct {
    const void *query, *kv_layer;
    const int32_t *tables, *context_lens;
    const float *sinks; /* or null */
    void *out;
    i64 query_token, query_head, kv_block, kv_kind, kv_slot, kv_head, stride_table;
    i64 block_size, num_kv_heads, group, head_dim, window; /* window 0: none */
    float scale, softcap;                                   /* softcap 0: none */
} Decode;

INLINE void decode_head(const Decode *a, i64 index, i64 size, int is_bf16) {
    i64 seq = index / a->num_kv_heads, kv_head = index % a->num_kv_heads, group = a->group;
    i64 context = a->context_lens[seq];
    i64 first = a->window && context > a->window ? context - a->window : 0;
    const int32_t *table = a->tables + seq * a->stride_table;
    float queries[MAX_GROUP][MAX_HEAD_DIM], sums[MAX_GROUP][MAX_HEAD_DIM], scores[MAX_GROUP][TILE];
    float most[MAX_GROUP], totals[MAX_GROUP];
    for (i64 g = 0; g < group; g++) {
        const void *query = at(a->query, seq * a->query_token + (kv_head * group + g) * a->query_head, is_bf16);
        for (i64 d = 0; d < size; d++) {
            queries[g][d] = get(query, d, is_bf16) * a->scale;
            sums[g][d] = 0.0f;
        }
        most[g] = a->sinks ? a->sinks[kv_head * group + g] : -INFINITY;
        totals[g] = a->sinks ? 1.0f : 0.0f;
    }
    for (i64 begin = first; begin < context; begin += TILE) {
        i64 count = context - begin < TILE ? context - begin : TILE;
        const void *keys[TILE];
        for (i64 i = 0; i < count; i++) {
            i64 position = begin + i, block = table[position / a->block_size];
            i64 place = block * a->kv_block + position % a->block_size * a->kv_slot + kv_head * a->kv_head;
            keys[i] = at(a->kv_layer, place, is_bf16);
        }
        for (i64 i = 0; i < count; i++)
            for (i64 g = 0; g < group; g++) {
                float score = dot(queries[g], keys[i], size, is_bf16);
                scores[g][i] = a->softcap != 0.0f ? a->softcap * tanhf(score / a->softcap) : score;
            }
        for (i64 g = 0; g < group; g++) {
            float highest = most[g], total = 0.0f;
            for (i64 i = 0; i < count; i++) highest = scores[g][i] > highest ? scores[g][i] : highest;
            for (i64 i = 0; i < count; i++) {
                scores[g][i] = exp_of(scores[g][i] - highest);
                total += scores[g][i];
            }
            float shrink = most[g] == -INFINITY ? 0.0f : exp_of(most[g] - highest);
            totals[g] = totals[g] * shrink + total;
            most[g] = highest;
            for (i64 d = 0; d < size; d++) sums[g][d] *= shrink;
        }
        for (i64 g = 0; g < group; g++)
            add_rows(sums[g], scores[g], keys, a->kv_kind, count, size, is_bf16);
    }
    for (i64 g = 0; g < group; g++) {
        void *out = at(a->out, (index * group + g) * size, is_bf16);
        float factor = totals[g] == 0.0f ? 0.0f : 1.0f / totals[g];
        for (i64 d = 0; d < size; d++) put(out, d, sums[g][d] * factor, is_bf16);
    }
}

/* The usual sizes of a head as constants, so that their loops have no remainder. */
INLINE void decode_item(const Decode *a, i64 index, int is_bf16) {
    if (a->head_dim == 32)
        decode_head(a, index, 32, is_bf16);
    else if (a->head_dim == 64)
        decode_head(a, index, 64, is_bf16);
    else if (a->head_dim == 128)
        decode_head(a, index, 128, is_bf16);
    else
        decode_head(a, index, a->head_dim, is_bf16);
}

static void decode_f32(const void *a, i64 index) { decode_item(a, index, 0); }
static void decode_bf16(const void *a, i64 index) { decode_item(a, index, 1); }

void baton_paged_decode(Parallel parallel, int threads, int is_bf16, i64 seqs, const Decode *a) {
    for_each(parallel, threads, seqs * a->num_kv_heads, is_bf16 ? decode_bf16 : decode_f32, a);
}
