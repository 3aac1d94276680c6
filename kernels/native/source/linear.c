/* Linear layers over weights in panels (products.h). */

#include "ops.h"
#include "products.h"

/* An item's sums fit the second cache, and what is read again for each of its rows, the panels of one register
 * tile in a part of the inputs, the first one. Items that share panels come one after the other. */
enum { ITEM_ROWS = 256, ITEM_PANELS = 4 };
enum { INNER_OF_F32 = 128, INNER_OF_BF16 = 512 };

INLINE void linear_part(const LinearOp *a, i64 index, int is_bf16) {
    i64 all_panels = pieces_of(a->outputs, PANEL), blocks = pieces_of(a->rows, ITEM_ROWS);
    i64 first_panel = index / blocks * ITEM_PANELS, first_row = index % blocks * ITEM_ROWS;
    i64 part = is_bf16 ? INNER_OF_BF16 : INNER_OF_F32, stride_panel = a->inputs * PANEL;
    float sums[ITEM_ROWS * ITEM_PANELS * PANEL] __attribute__((aligned(64)));
    Tiles tiles = {0, 0};
    Product product = {
        .sums = sums,
        .stride_x = a->stride_x,
        .stride_panel = stride_panel,
        .stride_sums = ITEM_PANELS * PANEL,
        .rows = smaller(a->rows - first_row, ITEM_ROWS),
        .num_panels = smaller(all_panels - first_panel, ITEM_PANELS),
    };
    memset(sums, 0, (size_t)(product.rows * product.stride_sums) * sizeof *sums);
    /* All inputs at once for few rows, which read no panel twice. */
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
        for (i64 i = 0; i < count; i += WIDTH) {
            i64 width = smaller(count - i, WIDTH);
            Vector sum = get_vector(row, i, 0);
            if (a->bias) sum += get_part(a->bias, first + i, width, is_bf16);
            put_part(out, i, width, sum, is_bf16);
        }
    }
}

static void linear_f32(const void *a, i64 index) { linear_part(a, index, 0); }
static void linear_bf16(const void *a, i64 index) { linear_part(a, index, 1); }

Phase linear_phase(const LinearOp *a, int is_bf16) {
    i64 columns = pieces_of(pieces_of(a->outputs, PANEL), ITEM_PANELS);
    return phase(PRODUCTS, columns * pieces_of(a->rows, ITEM_ROWS), is_bf16 ? linear_bf16 : linear_f32, a);
}
