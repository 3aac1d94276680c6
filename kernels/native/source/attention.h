/* paged_attention: chunks of any length attend over the paged KV of their sequences.
 *
 * A slot is some tokens of one sequence; an item is a slot and one KV head, or all of them. Its rows are those
 * tokens in each query head that shares the KV head. Keys and values are read in tiles of TILE positions, counted from
 * the sequence's begin. Where rows are few, as in decodes, heads take turns at each tile, as they lie in memory.
 * A tile becomes panels (products.h), its scores and the weighted sums of values are two products, and between
 * them is the online softmax of Milakov and Gimelshein (2018). A tile that a row does not see leaves the row as
 * it is, so that a row's bits do not depend on the chunk that it is in.
 *
 * KV of 8 bits is multiplied as it is stored: a key's scale multiplies its column of scores, and a value's its column of
 * weights.
 */

#pragma once
#include "ops.h"
#include "products.h"

enum { TILE = 64, MAX_ROWS = 128, MANY_SLOTS = 16 };

enum { GRAIN = 32 }; /* to which the inner size of a product in bfloat16 is padded */

/* A tile's keys and values of one head, and their scales if they are of 8 bits. */
typedef struct {
    const void *keys[TILE], *values[TILE];
    float key_scales[TILE], value_scales[TILE];
} Rows;

/* The rows that are read next. Memory delivers them while the processor computes, if it is asked for a few at a time:
 * some while keys are packed, some while scores are weighed, and the rest while values are packed. */
typedef struct {
    const Rows *rows;
    i64 next, bytes; /* the first row that is not fetched yet, and the bytes of each */
} Fetch;

enum { FETCHED_BY_KEYS = 24, FETCHED_BY_SCORES = 44, LINE_BYTES = 64 };

INLINE void fetch_to(Fetch *fetch, i64 end) {
    for (; fetch->next < end; fetch->next++)
        for (i64 line = 0; line < fetch->bytes; line += LINE_BYTES) {
            __builtin_prefetch((const char *)fetch->rows->keys[fetch->next] + line, 0, 2);
            __builtin_prefetch((const char *)fetch->rows->values[fetch->next] + line, 0, 2);
        }
}

/* How many rows are fetched when this many of a head's numbers are packed. */
INLINE i64 fetched_by_values(i64 numbers, i64 size) {
    return FETCHED_BY_SCORES + (TILE - FETCHED_BY_SCORES) * numbers / size;
}

#if defined(__AVX512F__)
INLINE __m128i four_words(const void *row, i64 byte) {
    return _mm_loadu_si128((const __m128i *)((const char *)row + byte));
}
#endif

/* Reads WIDTH words of WIDTH rows, from byte `first` on, and turns rows into columns. */
INLINE void read_columns(const void *const *rows, i64 first, VectorBits *columns) {
#if defined(__AVX512F__)
    /* Four words of rows r, r + 4, r + 8 and r + 12 make a vector, and four of these are transposed in each lane. */
#pragma GCC unroll 4
    for (int word = 0; word < WIDTH; word += 4) {
        i64 byte = first + word * 4;
        __m512i parts[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            parts[r] = _mm512_castsi128_si512(four_words(rows[r], byte));
            parts[r] = _mm512_mask_broadcast_i32x4(parts[r], 0x00f0, four_words(rows[r + 4], byte));
            parts[r] = _mm512_mask_broadcast_i32x4(parts[r], 0x0f00, four_words(rows[r + 8], byte));
            parts[r] = _mm512_mask_broadcast_i32x4(parts[r], 0xf000, four_words(rows[r + 12], byte));
        }
        __m512i a = _mm512_unpacklo_epi32(parts[0], parts[1]), b = _mm512_unpackhi_epi32(parts[0], parts[1]);
        __m512i c = _mm512_unpacklo_epi32(parts[2], parts[3]), d = _mm512_unpackhi_epi32(parts[2], parts[3]);
        columns[word] = (VectorBits)_mm512_unpacklo_epi64(a, c);
        columns[word + 1] = (VectorBits)_mm512_unpackhi_epi64(a, c);
        columns[word + 2] = (VectorBits)_mm512_unpacklo_epi64(b, d);
        columns[word + 3] = (VectorBits)_mm512_unpackhi_epi64(b, d);
    }
#else
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) memcpy(&columns[i], (const char *)rows[i] + first, sizeof(VectorBits));
#if defined(SHUFFLES)
    /* Each round interleaves one half of the rows with the other; log2(WIDTH) rounds are a transposition. */
#pragma GCC unroll 4
    for (int round = 1; round < WIDTH; round *= 2) {
        VectorBits next[WIDTH];
#pragma GCC unroll 8
        for (int i = 0; i < WIDTH / 2; i++) {
            next[2 * i] = LOW(columns[i], columns[i + WIDTH / 2]);
            next[2 * i + 1] = HIGH(columns[i], columns[i + WIDTH / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) columns[i] = next[i];
    }
#else
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < i; j++) {
            uint32_t kept = columns[i][j];
            columns[i][j] = columns[j][i];
            columns[j][i] = kept;
        }
#endif
#endif
}

/* The panels of a tile's keys: columns are positions, inner rows the numbers of a head. */
INLINE void pack_keys(const void *const *keys, void *panels, i64 size, i64 stride, Fetch *fetch, int is_bf16) {
    i64 words = is_bf16 ? pieces_of(size, 2) : size, blocks = TILE / WIDTH * pieces_of(words, WIDTH), block = 0;
    for (i64 first = 0; first < TILE; first += WIDTH)
        for (i64 word = 0; word < words; word += WIDTH) {
            VectorBits columns[WIDTH];
            i64 count = smaller(words - word, WIDTH);
            const void *ends[WIDTH];
            uint32_t copies[WIDTH][WIDTH];
            fetch_to(fetch, ++block * FETCHED_BY_KEYS / blocks);
            if (count < WIDTH) {
                /* The rows' ends, with zeros behind them. */
                size_t rest = (size_t)(size * (is_bf16 ? 2 : 4) - word * 4);
                memset(copies, 0, sizeof copies);
                for (int i = 0; i < WIDTH; i++)
                    ends[i] = memcpy(copies[i], (const char *)keys[first + i] + word * 4, rest);
                read_columns(ends, 0, columns);
            } else {
                read_columns(keys + first, word * 4, columns);
            }
            for (i64 i = 0; i < count; i++) {
                i64 inner = word + i, panel = first / PANEL * stride, column = first % PANEL;
                if (!is_bf16) {
                    memcpy((float *)panels + panel + inner * PANEL + column, &columns[i], sizeof(VectorBits));
                } else if (MULTIPLIES_BF16) {
                    memcpy((uint16_t *)panels + panel + (inner * PANEL + column) * 2, &columns[i], sizeof(VectorBits));
                } else {
                    VectorBits low = columns[i] << 16, high = columns[i] & 0xffff0000u;
                    float *target = (float *)panels + panel + 2 * inner * PANEL + column;
                    memcpy(target, &low, sizeof low);
                    if (2 * inner + 1 < size) memcpy(target + PANEL, &high, sizeof high);
                }
            }
        }
}

/* The panels of a tile's values: columns are the numbers of a head, inner rows positions. */
INLINE void pack_values(const void *const *values, void *panels, i64 size, Fetch *fetch, int is_bf16) {
    i64 first = 0;
#if defined(__AVX512BF16__)
    static const uint16_t ORDER[2 * PANEL] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                              8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_loadu_si512(ORDER), high = _mm512_add_epi16(low, _mm512_set1_epi16(PANEL));
    for (; is_bf16 && first + 2 * PANEL <= size; first += 2 * PANEL) {
        uint16_t *target = (uint16_t *)panels + first * TILE;
        fetch_to(fetch, fetched_by_values(first + 2 * PANEL, size));
        for (i64 i = 0; i < TILE; i += 2) {
            __m512i even = _mm512_loadu_si512((const uint16_t *)values[i] + first);
            __m512i odd = _mm512_loadu_si512((const uint16_t *)values[i + 1] + first);
            _mm512_storeu_si512(target + i * PANEL, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(target + (TILE + i) * PANEL, _mm512_permutex2var_epi16(even, high, odd));
        }
    }
#endif
    for (; first < pieces_of(size, PANEL) * PANEL; first += WIDTH) {
        i64 count = larger(0, smaller(size - first, WIDTH));
        fetch_to(fetch, fetched_by_values(smaller(first + WIDTH, size), size));
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

/* Writes a tile's numbers of 8 bits as those of x's type, which holds them exactly, and returns where each row is. */
INLINE void expand_rows(const void *const *rows, void *expanded, const void **targets, i64 size, int is_packed) {
    for (i64 i = 0; i < TILE; i++) {
        const int8_t *row = rows[i];
        void *target = at(expanded, i * size, is_packed);
        targets[i] = target;
        for (i64 d = 0; d < size; d++) put(target, d, (float)row[d], is_packed);
    }
}

/* Turns the row's scores of a tile, of which [low, high) are visible, into weights, and adds them to `total`;
 * returns the factor by which what was summed before shrinks. `highest` is the row's largest score so far, times
 * log2(e). */
INLINE float weigh(const AttentionOp *a, float *scores, i64 low, i64 high, float *highest, Vector *total,
                   void *weights, const float *value_scales, int is_packed) {
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
    float shrink = 1.0f, before = *highest, now = before;
    if (any_above(most, before)) { /* seldom, after some tiles */
        *highest = now = largest_of(most);
        shrink = before == -INFINITY ? 0.0f : exp2_of(filled(before - now))[0];
    }
#pragma GCC unroll 16
    for (int v = 0; v < TILE / WIDTH; v++) {
        Vector weight = exp2_of(parts[v] - now);
        sums += weight;
        /* What is not seen weighs nothing, whatever its scale. */
        if (value_scales) weight = either(weight > 0.0f, weight * get_vector(value_scales, v * WIDTH, 0), weight);
        put_vector(weights, v * WIDTH, weight, is_packed);
    }
    *total = *total * shrink + sums;
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

/* Some tokens of one sequence, and the positions that they see. */
typedef struct {
    i64 seq, first_token, tokens, position, begin, end;
} Chunk;

INLINE i64 tokens_of_item(const AttentionOp *a) { return MAX_ROWS / a->group; }
INLINE i64 slots_of(const AttentionOp *a) { return a->starts[a->num_seqs] / tokens_of_item(a) + a->num_seqs; }

INLINE Chunk chunk_of(const AttentionOp *a, i64 slot) {
    i64 most = tokens_of_item(a), seq = sequence_of(a, slot, most), start = a->starts[seq], last = a->starts[seq + 1];
    i64 first = start + (slot - (start / most + seq)) * most, tokens = smaller(last - first, most);
    i64 position = a->context_lens[seq] - (last - first);
    i64 begin = a->window ? larger(0, position + 1 - a->window) : 0;
    return (Chunk){seq, first, tokens, position, begin, position + tokens};
}

/* Finds the rows of a tile that the chunk sees; all others are zeros. */
INLINE void find_rows(const AttentionOp *a, const Chunk *chunk, i64 kv_head, i64 tile, Rows *rows, int is_bf16) {
    static const float zeros[MAX_HEAD_DIM];
    const int32_t *table = a->tables + chunk->seq * a->stride_table;
    i64 begin = larger(chunk->begin, tile), end = smaller(chunk->end, tile + TILE);
    for (i64 i = 0; i < TILE; i++) {
        if (i >= begin - tile && i < end - tile) continue;
        rows->keys[i] = rows->values[i] = zeros;
        rows->key_scales[i] = rows->value_scales[i] = 0.0f;
    }
    i64 slot = begin % a->block_size, entry = begin / a->block_size;
    for (i64 position = begin; position < end; entry++, slot = 0) {
        const Kv *kv = &a->kv;
        i64 bytes = kv->scales ? 1 : is_bf16 ? 2 : 4;
        const char *head = (const char *)kv->numbers + (table[entry] * kv->block + kv_head * kv->head) * bytes;
        const float *scales = kv->scales + table[entry] * kv->scale_block + kv_head * kv->scale_head;
        for (; slot < a->block_size && position < end; slot++, position++) {
            const char *key = head + slot * kv->slot * bytes;
            rows->keys[position - tile] = key;
            rows->values[position - tile] = key + kv->kind * bytes;
            if (!kv->scales) continue;
            rows->key_scales[position - tile] = scales[slot];
            rows->value_scales[position - tile] = scales[kv->scale_kind + slot];
        }
    }
}

/* All heads of a block are in a few pages of memory. Where there are enough items for the threads, one item has
 * all heads, since to find a page again in another item costs more than to read it. */
INLINE i64 heads_of_item(const AttentionOp *a) { return slots_of(a) < MANY_SLOTS ? 1 : a->num_kv_heads; }

/* Attends with a chunk in `heads` KV heads from `first_head` on, which have MAX_ROWS rows at most. */
INLINE void attend(const AttentionOp *a, const Chunk *chunk, i64 first_head, i64 heads, i64 size, int is_bf16,
                   int is_whole) {
    const int is_packed = is_bf16 && MULTIPLIES_BF16, stored_bf16 = is_whole ? is_packed : is_bf16;
    i64 group = a->group, rows = chunk->tokens * group, all_rows = heads * rows;
    i64 bytes = size * (is_whole ? 1 : is_bf16 ? 2 : 4);
    i64 inner = is_packed ? pieces_of(size, GRAIN) * GRAIN : size, width = pieces_of(size, PANEL) * PANEL;

    float queries[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float sums[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float scores[MAX_ROWS * TILE] __attribute__((aligned(64)));
    float weights[MAX_ROWS * TILE] __attribute__((aligned(64)));
    float key_panels[TILE * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float value_panels[TILE * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float expanded[TILE * MAX_HEAD_DIM] __attribute__((aligned(64)));
    const void *targets[TILE];
    Vector totals[MAX_ROWS]; /* the sums of each row's weights */
    float highest[MAX_ROWS];
    Tiles tiles = {0, 0};

    memset(sums, 0, (size_t)(all_rows * width) * sizeof *sums);
    if (is_packed && inner != size) {
        memset(queries, 0, (size_t)(all_rows * inner) * 2);
        memset(key_panels, 0, (size_t)(TILE * inner) * 2);
    }
    for (i64 r = 0; r < all_rows; r++) {
        i64 head = (first_head + r / rows) * group + r % group, token = chunk->first_token + r % rows / group;
        const void *query = at(a->query, token * a->query_token + head * a->query_head, is_bf16);
        if (is_packed)
            memcpy((uint16_t *)queries + r * inner, query, (size_t)size * 2);
        else
            for (i64 d = 0; d < size; d++) queries[r * inner + d] = get(query, d, is_bf16);
        highest[r] = a->sinks ? a->sinks[head] * LOG2_E : -INFINITY;
        totals[r] = (Vector){a->sinks ? 1.0f : 0.0f};
    }
    Rows found[2]; /* what is computed now, and what comes next: the next head's, or the first one's next tile */
    i64 tile = chunk->begin / TILE * TILE, head = 0;
    find_rows(a, chunk, first_head, tile, &found[0], is_bf16);
    for (int now = 0; tile < chunk->end; now = !now) {
        const Rows *own = &found[now];
        i64 next_head = head + 1 < heads ? head + 1 : 0, next_tile = next_head ? tile : tile + TILE;
        Fetch fetch = {&found[!now], next_tile < chunk->end ? 0 : TILE, bytes};
        if (next_tile < chunk->end) find_rows(a, chunk, first_head + next_head, next_tile, &found[!now], is_bf16);
        if (is_whole) expand_rows(own->keys, expanded, targets, size, is_packed);
        pack_keys(is_whole ? targets : own->keys, key_panels, size, inner * PANEL, &fetch, stored_bf16);
        memset(scores, 0, (size_t)(rows * TILE) * sizeof *scores);
        float *head_sums = sums + head * rows * width;
        const void *head_queries = at(queries, head * rows * inner, is_packed);
        multiply(&(Product){head_queries, key_panels, scores, inner, inner * PANEL, TILE, rows, TILE / PANEL, inner},
                 &tiles, is_packed);
        for (i64 r = 0; r < rows; r++) {
            void *weight = at(weights, r * TILE, is_packed);
            i64 place = chunk->position + r / group, one = head * rows + r;
            i64 high = smaller(TILE, place + 1 - tile);
            i64 low = a->window ? larger(0, place + 1 - a->window - tile) : 0;
            fetch_to(&fetch, FETCHED_BY_KEYS + (FETCHED_BY_SCORES - FETCHED_BY_KEYS) * (r + 1) / rows);
            if (low >= high) {
                memset(weight, 0, TILE * (is_packed ? 2 : 4));
                continue;
            }
            if (is_whole)
                for (i64 i = 0; i < TILE; i++) scores[r * TILE + i] *= own->key_scales[i];
            float shrink = weigh(a, scores + r * TILE, low, high, &highest[one], &totals[one], weight,
                                 is_whole ? own->value_scales : 0, is_packed);
            if (shrink != 1.0f)
                for (i64 d = 0; d < width; d++) head_sums[r * width + d] *= shrink;
        }
        if (is_whole) expand_rows(own->values, expanded, targets, size, is_packed);
        pack_values(is_whole ? targets : own->values, value_panels, size, &fetch, stored_bf16);
        multiply(&(Product){weights, value_panels, head_sums, TILE, TILE * PANEL, width, rows, width / PANEL, TILE},
                 &tiles, is_packed);
        head = next_head;
        tile = next_tile;
    }
    release(&tiles);
    for (i64 r = 0; r < all_rows; r++) {
        i64 head = (first_head + r / rows) * group + r % group, token = chunk->first_token + r % rows / group;
        void *out = at(a->out, (token * a->num_kv_heads * group + head) * size, is_bf16);
        float total = sum_of(totals[r]), factor = total == 0.0f ? 0.0f : 1.0f / total;
        for (i64 d = 0; d < size; d += WIDTH)
            put_part(out, d, smaller(size - d, WIDTH), get_vector(sums, r * width + d, 0) * factor, is_bf16);
    }
}

/* The usual sizes of a head as constants, so that their loops have no remainder. */
INLINE void attend_item(const AttentionOp *a, i64 index, int is_bf16, int is_whole) {
    i64 heads = heads_of_item(a), groups = a->num_kv_heads / heads, last = (index % groups + 1) * heads;
    const Chunk chunk = chunk_of(a, index / groups);
    if (chunk.tokens <= 0) return;
    i64 most = larger(1, MAX_ROWS / (chunk.tokens * a->group));
    for (i64 head = last - heads; head < last; head += most) {
        i64 count = smaller(most, last - head);
        if (a->head_dim == 64)
            attend(a, &chunk, head, count, 64, is_bf16, is_whole);
        else if (a->head_dim == 128)
            attend(a, &chunk, head, count, 128, is_bf16, is_whole);
        else
            attend(a, &chunk, head, count, a->head_dim, is_bf16, is_whole);
    }
}
