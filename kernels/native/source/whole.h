/* Weights of 8 and 4 bits. They become numbers of x's type in registers, where few rows are multiplied, so that a step
 * takes the time to read their bytes; or else a part at a time in a buffer that stays in the first or second cache, which
 * products.h then reads. Both make the same numbers and add up in the same order, so a row's bits depend on neither.
 *
 * In 8 bits a panel is [inner][PANEL] of int8. In 4 bits it is [inner / 2][PANEL] of bytes, whose lower half is an even
 * inner row, and whose upper half is the odd one that follows. `inner` and groups are even.
 */

#pragma once

#include "ops.h"
#include "products.h"

/* The most rows that are multiplied by weights in registers. */
#if defined(__AVX512F__)
enum { FEW_ROWS = 12 };
#else
enum { FEW_ROWS = TILE_ROWS };
#endif

/* With AMX, products of bfloat16 are left to it, but for one row with a scale for each output. It takes no longer for
 * twelve rows than vectors do for two, and adds up in an order of its own. */
INLINE i64 most_in_registers(int is_bf16, int stored) {
#if defined(__AMX_BF16__)
    if (is_bf16) return stored == WHOLE_8;
#endif
    (void)is_bf16, (void)stored;
    return FEW_ROWS;
}

/* How far ahead of the bytes that are expanded others are fetched. */
enum { AHEAD = 2048 };

/* The rows of `x` that are multiplied by all inner rows of some panels: sums[row][column] = x[row] . panels. */
typedef struct {
    const void *x;
    const Panels *panels;
    float *sums;
    i64 stride_x, stride_sums, rows, first_panel, num_panels, inner;
} WholeProduct;

/* What a group's inputs share, for the WIDTH columns of a part of a panel: a weight is number * scale + offset. */
typedef struct {
    Vector scale, offset;
} Steps;

/* The weights of an even inner row and of the odd one that follows. */
typedef struct {
    Vector even, odd;
} Weights;

typedef int8_t VectorBytes __attribute__((vector_size(WIDTH)));

INLINE VectorInts ints_of(const int8_t *row) {
    VectorBytes bytes;
    memcpy(&bytes, row, sizeof bytes);
#if defined(__AVX512F__)
    return (VectorInts)_mm512_cvtepi8_epi32((__m128i)bytes);
#else
    return __builtin_convertvector(bytes, VectorInts);
#endif
}

INLINE Vector vector_of(VectorInts numbers) { return __builtin_convertvector(numbers, Vector); }

/* The lowest 4 bits of whole numbers. */
INLINE Vector of_4_bits(VectorInts numbers) {
#if defined(__AVX512F__)
    const Vector found = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (Vector)_mm512_permutexvar_ps((__m512i)numbers, (__m512)found);
#else
    return vector_of(numbers & 15);
#endif
}

INLINE i64 panel_bytes(i64 inner, int stored) { return (stored == GROUPS_4 ? inner / 2 : inner) * PANEL; }

INLINE Steps steps_of(const Panels *a, i64 panel, i64 group, int part, i64 inner, int stored) {
    i64 place = (panel * pieces_of(inner, a->group) + group) * PANEL + part * WIDTH;
    Vector scale, offset, zero = filled(stored == GROUPS_4 ? 8.0f : 0.0f);
    if (stored == WHOLE_8) return (Steps){0};
    memcpy(&scale, a->scales + place, sizeof scale);
    if (a->offsets) {
        memcpy(&offset, a->offsets + place, sizeof offset);
        return (Steps){scale, offset};
    }
    if (a->zeros) zero = vector_of(ints_of(a->zeros + place));
    return (Steps){scale, -zero * scale};
}

/* The weights of a part of a panel in inner rows `inner`, which is even, and the next. */
INLINE Weights weights_of(const int8_t *panel, i64 inner, int part, Steps steps, int stored) {
    Weights weights;
    if (stored == GROUPS_4) {
        VectorInts both = ints_of(panel + inner / 2 * PANEL + part * WIDTH);
        weights = (Weights){of_4_bits(both), of_4_bits(both >> 4)};
    } else {
        const int8_t *row = panel + inner * PANEL + part * WIDTH;
        weights = (Weights){vector_of(ints_of(row)), vector_of(ints_of(row + PANEL))};
    }
    if (stored == WHOLE_8) return weights;
    return (Weights){weights.even * steps.scale + steps.offset, weights.odd * steps.scale + steps.offset};
}

/* Rounds to bfloat16, the nearest, ties to even, and puts each column's two numbers side by side. No weight is a NaN. */
INLINE VectorBits pairs_of(Weights weights, int stored) {
    if (stored == WHOLE_8) return ((VectorBits)weights.even >> 16) | (VectorBits)weights.odd;
#if defined(__AVX512BF16__)
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh halves = _mm512_cvtne2ps_pbh((__m512)weights.odd, (__m512)weights.even);
    return (VectorBits)_mm512_permutexvar_epi16(interleaved, (__m512i)halves);
#else
    VectorBits even = (VectorBits)weights.even, odd = (VectorBits)weights.odd;
    even += 0x7fffu + ((even >> 16) & 1u);
    odd += 0x7fffu + ((odd >> 16) & 1u);
    return (even >> 16) | (odd & 0xffff0000u);
#endif
}

/* Writes `count` inner rows of a panel from `inner` on, in the order of products.h. */
INLINE void expand_panel(const Panels *a, i64 panel, i64 all_inner, i64 inner, i64 count, void *out, int is_bf16,
                         int stored) {
    const int8_t *numbers = (const int8_t *)a->numbers + panel * panel_bytes(all_inner, stored);
    for (i64 end = inner + count, next; inner < end; inner = next) {
        i64 group = inner / a->group;
        Steps steps[PARTS];
        next = smaller(end, (group + 1) * a->group);
        for (int part = 0; part < PARTS; part++)
            steps[part] = steps_of(a, panel, group, part, all_inner, stored);
        for (i64 row = inner; row < next; row += 2) {
            __builtin_prefetch(numbers + panel_bytes(row, stored) + AHEAD);
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                Weights weights = weights_of(numbers, row, part, steps[part], stored);
                if (is_bf16) {
                    VectorBits pairs = pairs_of(weights, stored);
                    memcpy((char *)out + part * sizeof pairs, &pairs, sizeof pairs);
                } else {
                    memcpy((float *)out + part * WIDTH, &weights.even, sizeof weights.even);
                    memcpy((float *)out + PANEL + part * WIDTH, &weights.odd, sizeof weights.odd);
                }
            }
            out = (char *)out + (is_bf16 ? PANEL * 4 : PANEL * 8);
        }
    }
}

/* The sums of `rows` rows, of which those from a->rows on are the last one again and are not written. */
INLINE void multiply_whole_tile(const WholeProduct *a, i64 panel, int rows, int panels, int is_bf16, int stored) {
    Vector sums[FEW_ROWS][TILE_PANELS * PARTS];
    const char *x[FEW_ROWS];
    const int8_t *numbers[TILE_PANELS];
    int vectors = panels * PARTS;
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
        x[r] = at(a->x, smaller(r, a->rows - 1) * a->stride_x, is_bf16);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sums[r][v] = filled(0.0f);
    }
#pragma GCC unroll 8
    for (int p = 0; p < panels; p++)
        numbers[p] = (const int8_t *)a->panels->numbers + (a->first_panel + panel + p) * panel_bytes(a->inner, stored);
    for (i64 inner = 0, next; inner < a->inner; inner = next) {
        i64 group = inner / a->panels->group;
        Steps steps[TILE_PANELS * PARTS];
        next = smaller(a->inner, (group + 1) * a->panels->group);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            steps[v] = steps_of(a->panels, a->first_panel + panel + v / PARTS, group, v % PARTS, a->inner, stored);
        for (i64 row = inner; row < next; row += 2) {
            Weights weights[TILE_PANELS * PARTS];
            VectorBits pairs[TILE_PANELS * PARTS];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                weights[v] = weights_of(numbers[v / PARTS], row, v % PARTS, steps[v], stored);
                if (is_bf16) pairs[v] = pairs_of(weights[v], stored);
            }
#pragma GCC unroll 24
            for (int r = 0; r < rows; r++) {
                uint32_t pair, even, odd;
                if (is_bf16) {
                    memcpy(&pair, x[r] + row * 2, 4);
                } else {
                    memcpy(&even, x[r] + row * 4, 4);
                    memcpy(&odd, x[r] + row * 4 + 4, 4);
                }
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    if (is_bf16) {
                        sums[r][v] = add_pairs(sums[r][v], pair, pairs[v]);
                        continue;
                    }
                    sums[r][v] += from_bits(even) * weights[v].even;
                    sums[r][v] += from_bits(odd) * weights[v].odd;
                }
            }
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            if (r < a->rows)
                memcpy(a->sums + r * a->stride_sums + panel * PANEL + v * WIDTH, &sums[r][v], sizeof(Vector));
}

/* As many panels at once as leave registers for their sums. */
INLINE void multiply_whole_rows(const WholeProduct *a, int rows, int panels, int is_bf16, int stored) {
    i64 panel = 0;
    for (; panel + panels <= a->num_panels; panel += panels)
        multiply_whole_tile(a, panel, rows, panels, is_bf16, stored);
    for (; panels > 1 && panel < a->num_panels; panel++) multiply_whole_tile(a, panel, rows, 1, is_bf16, stored);
}

#if defined(__AMX_BF16__)

/* The sums of one row of bfloat16 in the order of AMX: those of the even inner rows of a tile and those of the odd
 * ones, and then of these two. The numbers of WHOLE_8 are bfloat16 as they are. `inner` is a multiple of AMX_INNER. */
INLINE void multiply_whole_row(const WholeProduct *a, i64 panel, int panels) {
    Vector sums[TILE_PANELS];
    const int8_t *numbers[TILE_PANELS];
    const uint16_t *x = (const uint16_t *)a->x;
#pragma GCC unroll 8
    for (int p = 0; p < panels; p++) {
        sums[p] = filled(0.0f);
        numbers[p] = (const int8_t *)a->panels->numbers + (a->first_panel + panel + p) * panel_bytes(a->inner, WHOLE_8);
    }
    for (i64 tile = 0; tile < a->inner; tile += AMX_INNER) {
        Vector even[TILE_PANELS], odd[TILE_PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) even[p] = odd[p] = filled(0.0f);
        for (i64 row = tile; row < tile + AMX_INNER; row += 2) {
            Vector even_x = filled(from_bits((uint32_t)x[row] << 16));
            Vector odd_x = filled(from_bits((uint32_t)x[row + 1] << 16));
#pragma GCC unroll 8
            for (int p = 0; p < panels; p++) {
                Weights weights = weights_of(numbers[p], row, 0, (Steps){0}, WHOLE_8);
                even[p] += even_x * weights.even;
                odd[p] += odd_x * weights.odd;
            }
        }
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) sums[p] += even[p] + odd[p];
    }
#pragma GCC unroll 8
    for (int p = 0; p < panels; p++) memcpy(a->sums + (panel + p) * PANEL, &sums[p], sizeof sums[p]);
}

INLINE void multiply_whole_as_amx(const WholeProduct *a) {
    enum { NO_DENORMALS = 0x8040 }; /* AMX reads and makes none. */
    unsigned int mode = _mm_getcsr();
    i64 panel = 0;
    _mm_setcsr(mode | NO_DENORMALS);
    for (; panel + TILE_PANELS <= a->num_panels; panel += TILE_PANELS) multiply_whole_row(a, panel, TILE_PANELS);
    for (; panel < a->num_panels; panel++) multiply_whole_row(a, panel, 1);
    _mm_setcsr(mode);
}

#endif

/* At most `most_in_registers` rows. */
INLINE void multiply_whole(const WholeProduct *a, int is_bf16, int stored) {
#if defined(__AMX_BF16__)
    if (is_bf16) {
        multiply_whole_as_amx(a);
        return;
    }
#endif
#if defined(__AVX512F__)
    if (a->rows > 8) multiply_whole_rows(a, 12, 2, is_bf16, stored);
    else if (a->rows > 6) multiply_whole_rows(a, 8, 2, is_bf16, stored);
    else
#endif
    if (a->rows > 4) multiply_whole_rows(a, smaller(6, TILE_ROWS), TILE_PANELS, is_bf16, stored);
    else if (a->rows > 2) multiply_whole_rows(a, smaller(4, TILE_ROWS), TILE_PANELS, is_bf16, stored);
    else if (a->rows > 1) multiply_whole_rows(a, 2, TILE_PANELS, is_bf16, stored);
    else multiply_whole_rows(a, 1, TILE_PANELS, is_bf16, stored);
}
