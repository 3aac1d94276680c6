/* Linear layers over weights in panels (products.h). */

#include "ops.h"
#include "products.h"

/* An item's sums and the part of its panels that is read again for each of its rows fit the first cache. */
enum { ITEM_ROWS = 192, ITEM_PANELS = TILE_PANELS < 2 ? 2 : TILE_PANELS };
enum { INNER_OF_F32 = 128, INNER_OF_BF16 = 512 };

INLINE void linear_part(const LinearOp *a, i64 index, int is_bf16) {
    i64 all_panels = pieces_of(a->outputs, PANEL), columns = pieces_of(all_panels, ITEM_PANELS);
    i64 first_panel = index % columns * ITEM_PANELS, first_row = index / columns * ITEM_ROWS;
    i64 part = is_bf16 ? INNER_OF_BF16 : INNER_OF_F32, stride_panel = a->inputs * PANEL;
    float sums[ITEM_ROWS * ITEM_PANELS * PANEL] __attribute__((aligned(64)));
    Product product = {
        .sums = sums,
        .stride_x = a->stride_x,
        .stride_panel = stride_panel,
        .stride_sums = ITEM_PANELS * PANEL,
        .rows = smaller(a->rows - first_row, ITEM_ROWS),
        .num_panels = smaller(all_panels - first_panel, ITEM_PANELS),
    };
    memset(sums, 0, (size_t)(product.rows * product.stride_sums) * sizeof *sums);
    Tiles tiles = {0, 0};
    /* All of them at once for few rows, which read no panel twice. */
    if (product.rows <= TILE_ROWS) part = a->inputs;
    for (i64 inner = 0; inner < a->inputs; inner += part) {
        product.x = at(a->x, first_row * a->stride_x + inner, is_bf16);
        product.panels = at(a->panels, first_panel * stride_panel + inner * PANEL, is_bf16);
        product.inner = smaller(part, a->inputs - inner);
        multiply(&product, &tiles, is_bf16);
    }
    release(&tiles);
    i64 first = first_panel * PANEL, count = smaller(a->outputs - first, product.num_panels * PANEL);
    for (i64 r = 0; r < product.rows; r++) {
        void *out = at(a->out, (first_row + r) * a->outputs + first, is_bf16);
        float *row = sums + r * product.stride_sums;
        if (a->bias)
            for (i64 i = 0; i < count; i++) row[i] += get(a->bias, first + i, is_bf16);
        for (i64 i = 0; i < count; i++) put(out, i, row[i], is_bf16);
    }
}

static void linear_f32(const void *a, i64 index) { linear_part(a, index, 0); }
static void linear_bf16(const void *a, i64 index) { linear_part(a, index, 1); }

Phase linear_phase(const LinearOp *a, int is_bf16) {
    i64 columns = pieces_of(pieces_of(a->outputs, PANEL), ITEM_PANELS);
    return phase(PRODUCTS, columns * pieces_of(a->rows, ITEM_ROWS), is_bf16 ? linear_bf16 : linear_f32, a);
}
