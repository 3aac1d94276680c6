/* paged_attention: chunks of any length attend over the paged KV of their sequences.
 *
 * A slot is some tokens of one sequence; an item is a slot and one KV head, or all of them. Its rows are those
 * tokens in each query head that shares the KV head. Keys and values are read in tiles of TILE positions, counted from the sequence's begin.
 * A tile becomes panels (products.h), its scores and the weighted sums of values are two products, and between
 * them is the online softmax of Milakov and Gimelshein (2018). A tile that a row does not see leaves the row as
 * it is, so that a row's bits do not depend on the chunk that it is in.
 */

#include "ops.h"
#include "products.h"

enum { TILE = 64, MAX_ROWS = 128, MANY_SLOTS = 16 };

enum { GRAIN = 32 }; /* to which the inner size of a product in bfloat16 is padded */

/* Turns rows of words into columns. */
INLINE void transpose(VectorBits *rows) {
#if defined(SHUFFLES)
    /* Each round interleaves one half of the rows with the other; log2(WIDTH) rounds are a transposition. */
#pragma GCC unroll 4
    for (int round = 1; round < WIDTH; round *= 2) {
        VectorBits next[WIDTH];
#pragma GCC unroll 8
        for (int i = 0; i < WIDTH / 2; i++) {
            next[2 * i] = LOW(rows[i], rows[i + WIDTH / 2]);
            next[2 * i + 1] = HIGH(rows[i], rows[i + WIDTH / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) rows[i] = next[i];
    }
#else
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < i; j++) {
            uint32_t kept = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = kept;
        }
#endif
}

/* The panels of a tile's keys: columns are positions, inner rows the numbers of a head. */
INLINE void pack_keys(const void *const *keys, void *panels, i64 size, i64 stride, int is_bf16) {
    i64 words = is_bf16 ? pieces_of(size, 2) : size;
    for (i64 first = 0; first < TILE; first += WIDTH)
        for (i64 word = 0; word < words; word += WIDTH) {
            VectorBits rows[WIDTH] = {0};
            i64 count = smaller(words - word, WIDTH);
            i64 numbers = is_bf16 ? smaller(size - 2 * word, 2 * WIDTH) : count;
            if (count == WIDTH)
#pragma GCC unroll 16
                for (int i = 0; i < WIDTH; i++)
                    memcpy(&rows[i], (const char *)keys[first + i] + word * 4, sizeof(VectorBits));
            else
                for (int i = 0; i < WIDTH; i++)
                    memcpy(&rows[i], (const char *)keys[first + i] + word * 4, (size_t)numbers * (is_bf16 ? 2 : 4));
            transpose(rows);
            for (i64 i = 0; i < count; i++) {
                i64 inner = word + i, panel = first / PANEL * stride, column = first % PANEL;
                if (!is_bf16) {
                    memcpy((float *)panels + panel + inner * PANEL + column, &rows[i], sizeof(VectorBits));
                } else if (MULTIPLIES_BF16) {
                    memcpy((uint16_t *)panels + panel + (inner * PANEL + column) * 2, &rows[i], sizeof(VectorBits));
                } else {
                    VectorBits low = rows[i] << 16, high = rows[i] & 0xffff0000u;
                    float *target = (float *)panels + panel + 2 * inner * PANEL + column;
                    memcpy(target, &low, sizeof low);
                    if (2 * inner + 1 < size) memcpy(target + PANEL, &high, sizeof high);
                }
            }
        }
}

/* The panels of a tile's values: columns are the numbers of a head, inner rows positions. */
INLINE void pack_values(const void *const *values, void *panels, i64 size, int is_bf16) {
    for (i64 first = 0; first < pieces_of(size, PANEL) * PANEL; first += WIDTH) {
        i64 count = larger(0, smaller(size - first, WIDTH));
        i64 panel = first / PANEL * PANEL * TILE, column = first % PANEL;
        for (i64 i = 0; i < TILE; i += 2) {
            VectorBits pair[2];
            for (int which = 0; which < 2; which++) {
                const void *value = at(values[i + which], first, is_bf16);
                uint32_t words[WIDTH] = {0};
                if (count < WIDTH) value = memcpy(words, value, (size_t)count * (is_bf16 ? 2 : 4));
                if (is_bf16)
                    pair[which] = widened(value);
                else
                    memcpy(&pair[which], value, sizeof(VectorBits));
            }
            if (is_bf16 && MULTIPLIES_BF16) {
                VectorBits both = pair[0] | (pair[1] << 16);
                memcpy((uint16_t *)panels + panel + i * PANEL + column * 2, &both, sizeof both);
                continue;
            }
            for (int which = 0; which < 2; which++) {
                VectorBits number = is_bf16 ? pair[which] << 16 : pair[which];
                memcpy((float *)panels + panel + (i + which) * PANEL + column, &number, sizeof number);
            }
        }
    }
}

/* A row's largest score, times log2(e), and the sum of its weights, of the tiles so far. */
typedef struct {
    float highest, total;
} Running;

/* Turns the row's scores of a tile, of which [low, high) are visible, into weights; returns the factor by
 * which what was summed before shrinks. */
INLINE float weigh(const AttentionOp *a, float *scores, i64 low, i64 high, Running *running, void *weights,
                   int is_packed) {
    Vector parts[TILE / WIDTH], most = filled(-INFINITY), sums = {0};
    const float scale = a->scale * LOG2_E; /* weights are powers of 2 */
    if (a->softcap != 0.0f)
        for (i64 i = 0; i < TILE; i++) scores[i] = a->softcap / a->scale * tanhf(scores[i] * a->scale / a->softcap);
    for (i64 i = 0; i < low; i++) scores[i] = -INFINITY;
    for (i64 i = high; i < TILE; i++) scores[i] = -INFINITY;
#pragma GCC unroll 16
    for (int v = 0; v < TILE / WIDTH; v++) {
        parts[v] = get_vector(scores, v * WIDTH, 0) * scale;
        most = larger_of(parts[v], most);
    }
    float before = running->highest, tile = largest_of(most), highest = tile > before ? tile : before;
#pragma GCC unroll 16
    for (int v = 0; v < TILE / WIDTH; v++) {
        Vector weight = exp2_of(parts[v] - highest);
        sums += weight;
        put_vector(weights, v * WIDTH, weight, is_packed);
    }
    float shrink = 1.0f;
    if (before == -INFINITY)
        shrink = 0.0f;
    else if (before != highest)
        shrink = exp2_of(filled(before - highest))[0];
    *running = (Running){highest, running->total * shrink + sum_of(sums)};
    return shrink;
}

/* The sequence that a slot of tokens belongs to. Sequence s begins at slot starts[s] / tokens + s, which leaves
 * room for its tokens, and seldom for a slot that stays empty. */
INLINE i64 sequence_of(const AttentionOp *a, i64 slot, i64 tokens) {
    i64 low = 0, high = a->num_seqs;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (a->starts[middle] / tokens + middle <= slot)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Finds the keys and values of the positions of a tile that are in [begin, end), and lets the processor fetch
 * them; all others are zeros. */
INLINE void find_rows(const AttentionOp *a, const int32_t *table, i64 kv_head, i64 tile, i64 begin, i64 end,
                      const void **keys, const void **values, int is_bf16) {
    static const float zeros[MAX_HEAD_DIM];
    begin = larger(begin, tile);
    end = smaller(end, tile + TILE);
    for (i64 i = 0; i < begin - tile; i++) keys[i] = values[i] = zeros;
    for (i64 i = end - tile; i < TILE; i++) keys[i] = values[i] = zeros;
    i64 slot = begin % a->block_size, entry = begin / a->block_size;
    for (i64 position = begin; position < end; entry++, slot = 0) {
        const char *head = at(a->kv_layer, table[entry] * a->kv_block + kv_head * a->kv_head, is_bf16);
        for (; slot < a->block_size && position < end; slot++, position++) {
            const char *key = at(head, slot * a->kv_slot, is_bf16), *value = at(key, a->kv_kind, is_bf16);
            keys[position - tile] = key;
            values[position - tile] = value;
            for (i64 line = 0; line < a->head_dim * (is_bf16 ? 2 : 4); line += 64) {
                __builtin_prefetch(key + line, 0, 2);
                __builtin_prefetch(value + line, 0, 2);
            }
        }
    }
}

INLINE i64 tokens_of_item(const AttentionOp *a) { return MAX_ROWS / a->group; }
INLINE i64 slots_of(const AttentionOp *a) { return a->starts[a->num_seqs] / tokens_of_item(a) + a->num_seqs; }

/* All heads of a block are in a few pages of memory. Where there are enough items for the threads, one item has
 * all heads, since to find a page again in another item costs more than to read it. */
INLINE i64 heads_of_item(const AttentionOp *a) { return slots_of(a) < MANY_SLOTS ? 1 : a->num_kv_heads; }

INLINE void attend(const AttentionOp *a, i64 slot, i64 kv_head, i64 size, int is_bf16) {
    const int is_packed = is_bf16 && MULTIPLIES_BF16;
    i64 tokens = tokens_of_item(a), seq = sequence_of(a, slot, tokens), start = a->starts[seq];
    i64 first_token = start + (slot - (start / tokens + seq)) * tokens;
    i64 count_tokens = smaller(a->starts[seq + 1] - first_token, tokens);
    if (count_tokens <= 0) return;
    i64 position = a->context_lens[seq] - (a->starts[seq + 1] - first_token), group = a->group;
    i64 rows = count_tokens * group, end = position + count_tokens;
    i64 begin = a->window ? larger(0, position + 1 - a->window) : 0;
    i64 inner = is_packed ? pieces_of(size, GRAIN) * GRAIN : size, width = pieces_of(size, PANEL) * PANEL;

    float queries[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float sums[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float scores[MAX_ROWS * TILE] __attribute__((aligned(64)));
    float weights[MAX_ROWS * TILE] __attribute__((aligned(64)));
    float key_panels[TILE * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float value_panels[TILE * MAX_HEAD_DIM] __attribute__((aligned(64)));
    Running running[MAX_ROWS];
    Tiles tiles = {0, 0};

    memset(sums, 0, (size_t)(rows * width) * sizeof *sums);
    if (is_packed && inner != size) {
        memset(queries, 0, (size_t)(rows * inner) * 2);
        memset(key_panels, 0, (size_t)(TILE * inner) * 2);
    }
    for (i64 r = 0; r < rows; r++) {
        i64 head = kv_head * group + r % group;
        const void *query = at(a->query, (first_token + r / group) * a->query_token + head * a->query_head, is_bf16);
        if (is_packed)
            memcpy((uint16_t *)queries + r * inner, query, (size_t)size * 2);
        else
            for (i64 d = 0; d < size; d++) queries[r * inner + d] = get(query, d, is_bf16);
        running[r] = a->sinks ? (Running){a->sinks[head] * LOG2_E, 1.0f} : (Running){-INFINITY, 0.0f};
    }
    Product product_scores = {queries, key_panels, scores, inner, inner * PANEL, TILE, rows, TILE / PANEL, inner};
    Product product_sums = {weights, value_panels, sums, TILE, TILE * PANEL, width, rows,
                            width / PANEL, TILE};
    const int32_t *table = a->tables + seq * a->stride_table;
    const void *keys[2][TILE], *values[2][TILE]; /* of this tile, and of the next, which is on its way */
    i64 tile = begin / TILE * TILE;
    find_rows(a, table, kv_head, tile, begin, end, keys[0], values[0], is_bf16);
    for (int now = 0; tile < end; tile += TILE, now = !now) {
        if (tile + TILE < end)
            find_rows(a, table, kv_head, tile + TILE, begin, end, keys[!now], values[!now], is_bf16);
        pack_keys(keys[now], key_panels, size, inner * PANEL, is_bf16);
        memset(scores, 0, (size_t)(rows * TILE) * sizeof *scores);
        multiply(&product_scores, &tiles, is_packed);
        for (i64 r = 0; r < rows; r++) {
            void *weight = at(weights, r * TILE, is_packed);
            i64 place = position + r / group;
            i64 high = smaller(TILE, place + 1 - tile);
            i64 low = a->window ? larger(0, place + 1 - a->window - tile) : 0;
            if (low >= high) {
                memset(weight, 0, TILE * (is_packed ? 2 : 4));
                continue;
            }
            float shrink = weigh(a, scores + r * TILE, low, high, &running[r], weight, is_packed);
            if (shrink != 1.0f)
                for (i64 d = 0; d < width; d++) sums[r * width + d] *= shrink;
        }
        pack_values(values[now], value_panels, size, is_bf16);
        multiply(&product_sums, &tiles, is_packed);
    }
    release(&tiles);
    for (i64 r = 0; r < rows; r++) {
        i64 head = kv_head * group + r % group;
        void *out = at(a->out, ((first_token + r / group) * a->num_kv_heads * group + head) * size, is_bf16);
        float factor = running[r].total == 0.0f ? 0.0f : 1.0f / running[r].total;
        for (i64 d = 0; d < size; d++) put(out, d, sums[r * width + d] * factor, is_bf16);
    }
}

/* The usual sizes of a head as constants, so that their loops have no remainder. */
INLINE void attend_item(const AttentionOp *a, i64 index, int is_bf16) {
    i64 heads = heads_of_item(a), groups = a->num_kv_heads / heads, slot = index / groups;
    for (i64 head = index % groups * heads, last = head + heads; head < last; head++)
        if (a->head_dim == 64)
            attend(a, slot, head, 64, is_bf16);
        else if (a->head_dim == 128)
            attend(a, slot, head, 128, is_bf16);
        else
            attend(a, slot, head, a->head_dim, is_bf16);
}

static void attend_f32(const void *a, i64 index) { attend_item(a, index, 0); }
static void attend_bf16(const void *a, i64 index) { attend_item(a, index, 1); }

Phase attention_phase(const AttentionOp *a, int is_bf16) {
    i64 items = slots_of(a) * (a->num_kv_heads / heads_of_item(a));
    return phase(ATTENTION, items, is_bf16 ? attend_bf16 : attend_f32, a);
}
