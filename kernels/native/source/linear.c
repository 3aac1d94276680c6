/* Linear layers over weights in panels (products.h), and over whole numbers (whole.h). */

#include "whole.h"

/* An item's sums fit the second cache, and what is read again for each of its rows, the panels of one register
 * tile in a part of the inputs, the first one. Items that share panels come one after the other. */
enum { ITEM_ROWS = 256, ITEM_PANELS = 4 };
enum { INNER_OF_F32 = 128, INNER_OF_BF16 = 512 };
enum { ITEM_WORDS = INNER_OF_BF16 / 2 * ITEM_PANELS * PANEL };

/* Adds the products of some rows with parts of the inputs, one after the other. */
INLINE void add_parts(const LinearOp *a, Product *product, i64 first_panel, int is_bf16, int stored) {
    uint32_t expanded[ITEM_WORDS] __attribute__((aligned(64)));
    i64 part = is_bf16 ? INNER_OF_BF16 : INNER_OF_F32;
    const void *x = product->x;
    Tiles tiles = {0, 0};
    memset(product->sums, 0, (size_t)(product->rows * product->stride_sums) * sizeof *product->sums);
    /* All inputs at once for few rows, which read no panel twice. */
    if (stored == NUMBERS && product->rows <= TILE_ROWS) part = a->inputs;
    for (i64 inner = 0; inner < a->inputs; inner += part) {
        product->x = at(x, inner, is_bf16);
        product->inner = smaller(part, a->inputs - inner);
        if (stored == NUMBERS) {
            product->stride_panel = a->inputs * PANEL;
            product->panels = at(a->panels.numbers, (first_panel * a->inputs + inner) * PANEL, is_bf16);
        } else {
            product->stride_panel = product->inner * PANEL;
            product->panels = expanded;
            for (i64 p = 0; p < product->num_panels; p++)
                expand_panel(&a->panels, first_panel + p, a->inputs, inner, product->inner,
                             at(expanded, p * product->stride_panel, is_bf16), is_bf16, stored);
        }
        multiply(product, &tiles, is_bf16);
    }
    release(&tiles);
}

INLINE void linear_part(const LinearOp *a, i64 index, int is_bf16, int stored) {
    i64 all_panels = pieces_of(a->outputs, PANEL), blocks = pieces_of(a->rows, ITEM_ROWS);
    i64 first_panel = index / blocks * ITEM_PANELS, first_row = index % blocks * ITEM_ROWS;
    float sums[ITEM_ROWS * ITEM_PANELS * PANEL] __attribute__((aligned(64)));
    Product product = {
        .x = at(a->x, first_row * a->stride_x, is_bf16),
        .sums = sums,
        .stride_x = a->stride_x,
        .stride_sums = ITEM_PANELS * PANEL,
        .rows = smaller(a->rows - first_row, ITEM_ROWS),
        .num_panels = smaller(all_panels - first_panel, ITEM_PANELS),
    };
    if (stored != NUMBERS && product.rows <= most_in_registers(is_bf16, stored))
        multiply_whole(&(WholeProduct){product.x, &a->panels, sums, a->stride_x, product.stride_sums, product.rows,
                                       first_panel, product.num_panels, a->inputs},
                       is_bf16, stored);
    else
        add_parts(a, &product, first_panel, is_bf16, stored);
    i64 first = first_panel * PANEL, count = smaller(a->outputs - first, product.num_panels * PANEL);
    for (i64 r = 0; r < product.rows; r++) {
        void *out = at(a->out, (first_row + r) * a->outputs + first, is_bf16);
        float *row = sums + r * product.stride_sums;
        for (i64 i = 0; i < count; i += WIDTH) {
            i64 width = smaller(count - i, WIDTH);
            Vector sum = get_vector(row, i, 0);
            if (stored == WHOLE_8) sum *= get_vector(a->panels.scales, first + i, 0);
            if (a->bias) sum += get_part(a->bias, first + i, width, is_bf16);
            put_part(out, i, width, sum, is_bf16);
        }
    }
}

#define LINEAR(NAME, IS_BF16, STORED) \
    static void NAME(const void *a, i64 index) { linear_part(a, index, IS_BF16, STORED); }
LINEAR(numbers_f32, 0, NUMBERS)
LINEAR(numbers_bf16, 1, NUMBERS)
LINEAR(whole_8_f32, 0, WHOLE_8)
LINEAR(whole_8_bf16, 1, WHOLE_8)
LINEAR(groups_8_f32, 0, GROUPS_8)
LINEAR(groups_8_bf16, 1, GROUPS_8)
LINEAR(groups_4_f32, 0, GROUPS_4)
LINEAR(groups_4_bf16, 1, GROUPS_4)

static void (*const items[][2])(const void *, i64) = {
    [NUMBERS] = {numbers_f32, numbers_bf16},
    [WHOLE_8] = {whole_8_f32, whole_8_bf16},
    [GROUPS_8] = {groups_8_f32, groups_8_bf16},
    [GROUPS_4] = {groups_4_f32, groups_4_bf16},
};

Phase linear_phase(const LinearOp *a, int is_bf16) {
    i64 columns = pieces_of(pieces_of(a->outputs, PANEL), ITEM_PANELS);
    return phase(PRODUCTS, columns * pieces_of(a->rows, ITEM_ROWS), items[a->panels.stored][is_bf16], a);
}
