/* Sums of products of rows with panels: the inner loop of linear layers and of attention.
 *
 * A panel has PANEL columns of a matrix of `inner` rows. In float32 it is [inner][PANEL]. In bfloat16 it is
 * [inner / 2][PANEL][2], pairs of rows side by side, as AMX, AVX512-BF16 and ARM's BF16 multiply them. Every sum is
 * made in the order of the inner rows, whichever rows are computed together, so a row's bits depend on that row alone.
 */

#pragma once

#include "common.h"

enum { PANEL = 16 };

/* The rows and panels whose sums fit the processor's registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, TILE_PANELS = 4 };
#elif defined(__AVX2__) || defined(__aarch64__)
enum { TILE_ROWS = 6, TILE_PANELS = 1 };
#else
enum { TILE_ROWS = 2, TILE_PANELS = 1 };
#endif
enum { PARTS = PANEL / WIDTH };

/* Sums for rows of float32 or bfloat16: sums[row][column] += x[row] . panels. Strides count numbers. */
typedef struct {
    const void *x;
    const void *panels;
    float *sums;
    i64 stride_x, stride_panel, stride_sums;
    i64 rows, num_panels, inner;
} Product;

/* The rows that AMX tiles are configured for, in a series of products of one thread; 0 at its begin. */
typedef struct {
    i64 first_rows, second_rows;
} Tiles;

/* In bfloat16 products are in bfloat16 where the processor has such, and in float32 elsewhere. */
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
enum { MULTIPLIES_BF16 = 1 };
#else
enum { MULTIPLIES_BF16 = 0 };
#endif

/* Adds the products of a pair of bfloat16 with a pair in each column. */
INLINE Vector add_pairs(Vector sums, uint32_t pair, VectorBits column) {
#if defined(__AVX512BF16__)
    __m512bh numbers = (__m512bh)_mm512_set1_epi32((int)pair);
    return (Vector)_mm512_dpbf16_ps((__m512)sums, numbers, (__m512bh)column);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    bfloat16x8_t numbers = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
    return (Vector)vbfdotq_f32((float32x4_t)sums, numbers, (bfloat16x8_t)column);
#else
    sums += from_bits(pair << 16) * (Vector)(column << 16);
    return sums + from_bits(pair & 0xffff0000u) * (Vector)(column & 0xffff0000u);
#endif
}

INLINE void multiply_tile(const Product *a, i64 row, i64 panel, int rows, int panels, int is_bf16) {
    Vector sums[TILE_ROWS][TILE_PANELS * PARTS];
    const char *x[TILE_ROWS], *columns[TILE_PANELS];
    float *target = a->sums + row * a->stride_sums + panel * PANEL;
    int vectors = panels * PARTS;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        x[r] = at(a->x, (row + r) * a->stride_x, is_bf16);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            memcpy(&sums[r][v], target + r * a->stride_sums + v * WIDTH, sizeof(Vector));
    }
#pragma GCC unroll 8
    for (int p = 0; p < panels; p++) columns[p] = at(a->panels, (panel + p) * a->stride_panel, is_bf16);
    /* A step is one inner row of float32, or a pair of them in bfloat16: four bytes of x. */
    i64 steps = is_bf16 ? a->inner / 2 : a->inner;
    for (i64 step = 0; step < steps; step++) {
        VectorBits column[TILE_PANELS * PARTS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            memcpy(&column[v], columns[v / PARTS] + (step * PARTS + v % PARTS) * (i64)sizeof(Vector),
                   sizeof(Vector));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            uint32_t pair;
            memcpy(&pair, x[r] + step * 4, 4);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                if (!is_bf16) {
                    sums[r][v] += from_bits(pair) * (Vector)column[v];
                    continue;
                }
                sums[r][v] = add_pairs(sums[r][v], pair, column[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            memcpy(target + r * a->stride_sums + v * WIDTH, &sums[r][v], sizeof(Vector));
}

INLINE void multiply_panels(const Product *a, i64 panel, int panels, int is_bf16) {
    i64 row = 0;
    for (; row + TILE_ROWS <= a->rows; row += TILE_ROWS)
        multiply_tile(a, row, panel, TILE_ROWS, panels, is_bf16);
    switch (a->rows - row) {
#if defined(__AVX2__) || defined(__aarch64__)
    case 5: multiply_tile(a, row, panel, 5, panels, is_bf16); break;
    case 4: multiply_tile(a, row, panel, 4, panels, is_bf16); break;
    case 3: multiply_tile(a, row, panel, 3, panels, is_bf16); break;
    case 2: multiply_tile(a, row, panel, 2, panels, is_bf16); break;
#endif
    case 1: multiply_tile(a, row, panel, 1, panels, is_bf16); break;
    default: break;
    }
}

INLINE void multiply_in_vectors(const Product *a, int is_bf16) {
    i64 panel = 0;
    for (; panel + TILE_PANELS <= a->num_panels; panel += TILE_PANELS)
        multiply_panels(a, panel, TILE_PANELS, is_bf16);
    for (; panel < a->num_panels; panel++) multiply_panels(a, panel, 1, is_bf16);
}

#if defined(__AMX_BF16__)

/* A tile has 16 rows of 64 bytes: 32 numbers of x, 16 pairs of inner rows, or 16 sums. */
enum { AMX_ROWS = 16, AMX_INNER = 32 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 panels. */
INLINE void configure_tiles(Tiles *tiles, i64 first_rows, i64 second_rows) {
    TileConfig config = {.palette = 1};
    if (tiles->first_rows == first_rows && tiles->second_rows == second_rows) return;
    *tiles = (Tiles){first_rows, second_rows};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = AMX_ROWS;
    }
    config.rows[0] = config.rows[1] = config.rows[4] = (uint8_t)first_rows;
    config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)larger(1, second_rows);
    _tile_loadconfig(&config);
}

/* Products of many rows take long enough for the next two panels to be fetched meanwhile, some lines in each
 * step: those beside these, or else the next inner rows of the first two. Products of few rows end sooner than
 * memory delivers, in any order. */
enum { MANY_ROWS = 128, LINE = 64 };

INLINE i64 lines_of_step(const Product *a) { return pieces_of(2 * AMX_ROWS * AMX_ROWS, a->rows); }

/* Bytes from two panels to where rows from `row` on fetch from. */
INLINE i64 ahead_of(const Product *a, i64 row, i64 panel) {
    i64 steps = row / (2 * AMX_ROWS) * (a->inner / AMX_INNER);
    i64 next = panel + 2 < a->num_panels ? 2 * a->stride_panel : a->inner * PANEL - panel * a->stride_panel;
    return next * 2 + steps * lines_of_step(a) * LINE;
}

/* Sums of up to 32 rows and two panels. */
INLINE void multiply_tiles(const Product *a, i64 row, i64 panel) {
    int two_rows = row + AMX_ROWS < a->rows, two_panels = panel + 1 < a->num_panels;
    const uint16_t *x = (const uint16_t *)a->x + row * a->stride_x, *next_x = x + AMX_ROWS * a->stride_x;
    const uint16_t *columns = (const uint16_t *)a->panels + panel * a->stride_panel;
    const uint16_t *next_columns = columns + (two_panels ? a->stride_panel : 0);
    float *sums = a->sums + row * a->stride_sums + panel * PANEL, *next_sums = sums + AMX_ROWS * a->stride_sums;
    i64 stride_x = a->stride_x * 2, stride_sums = a->stride_sums * 4;
    _tile_loadd(0, sums, stride_sums);
    if (two_panels) _tile_loadd(1, sums + PANEL, stride_sums);
    if (two_rows) {
        _tile_loadd(2, next_sums, stride_sums);
        if (two_panels) _tile_loadd(3, next_sums + PANEL, stride_sums);
    }
    const char *ahead = (const char *)columns + ahead_of(a, row, panel);
    for (i64 inner = 0; inner < a->inner; inner += AMX_INNER) {
        if (a->rows >= MANY_ROWS)
            for (i64 line = lines_of_step(a); line; line--, ahead += LINE) {
                __builtin_prefetch(ahead, 0, 2);
                __builtin_prefetch(ahead + a->stride_panel * 2, 0, 2);
            }
        _tile_loadd(6, columns + inner * PANEL, 64);
        _tile_loadd(4, x + inner, stride_x);
        _tile_dpbf16ps(0, 4, 6);
        if (two_panels) {
            _tile_loadd(7, next_columns + inner * PANEL, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, next_x + inner, stride_x);
            _tile_dpbf16ps(2, 5, 6);
            if (two_panels) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, stride_sums);
    if (two_panels) _tile_stored(1, sums + PANEL, stride_sums);
    if (two_rows) {
        _tile_stored(2, next_sums, stride_sums);
        if (two_panels) _tile_stored(3, next_sums + PANEL, stride_sums);
    }
}

INLINE void multiply_in_tiles(const Product *a, Tiles *tiles) {
    i64 whole = a->rows / (2 * AMX_ROWS) * 2 * AMX_ROWS, rest = a->rows - whole;
    if (whole) {
        configure_tiles(tiles, AMX_ROWS, AMX_ROWS);
        for (i64 panel = 0; panel < a->num_panels; panel += 2)
            for (i64 row = 0; row < whole; row += 2 * AMX_ROWS) multiply_tiles(a, row, panel);
    }
    if (rest) {
        configure_tiles(tiles, smaller(rest, AMX_ROWS), larger(0, rest - AMX_ROWS));
        for (i64 panel = 0; panel < a->num_panels; panel += 2) multiply_tiles(a, whole, panel);
    }
}

#endif

/* In bfloat16 `inner` is even; with AMX it is a multiple of 32. */
INLINE void multiply(const Product *a, Tiles *tiles, int is_bf16) {
#if defined(__AMX_BF16__)
    if (is_bf16) {
        multiply_in_tiles(a, tiles);
        return;
    }
#endif
    (void)tiles;
    multiply_in_vectors(a, is_bf16);
}

/* Ends a series of products of one thread. */
INLINE void release(const Tiles *tiles) {
#if defined(__AMX_BF16__)
    if (tiles->first_rows) _tile_release();
#endif
    (void)tiles;
}
