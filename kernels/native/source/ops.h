/* The arguments of each op, in the order of ops.py, and the phase that runs it. Strides count numbers. */

#pragma once

#include "common.h"

enum { MAX_HEAD_DIM = 256 };
enum { KEYS, VALUES }; /* the kinds of KV */

typedef struct {
    const void *x;
    void *residual; /* or null */
    const void *weight;
    void *out;
    const i64 *residual_places, *out_places; /* the rows there that belong to those of x; or null: the same */
    i64 rows, stride_x, stride_residual, size;
    float eps;
    int unit_offset;
} NormOp;

typedef struct {
    const void *gate_up;
    void *out;
    i64 rows, stride, size;
    int activation;
} GateOp;

/* The paged keys and values of a layer, of x's type; or with scales, of 8 bits: a number is value * scale of its token
 * and head (kernels/store_kv/quantise.py). Strides count numbers, and scales. */
typedef struct {
    void *numbers;
    float *scales; /* or null */
    i64 block, kind, slot, head, scale_block, scale_kind, scale_head;
} Kv;

typedef struct {
    const void *query, *key, *value, *cos, *sin;
    Kv kv;
    const i64 *slots;
    const void *query_norm, *key_norm; /* or null */
    void *out;
    const i64 *out_places; /* where in out each token's query belongs, -1: nowhere; or null: at the token's place */
    i64 tokens, query_token, query_head, key_token, key_head, value_token, value_head, cos_token, sin_token;
    i64 block_size, num_q_heads, num_kv_heads, head_dim, half;
    float eps;
    int unit_offset;
} RopeOp;

/* Sequence s has the tokens starts[s] to starts[s + 1], the last ones of its context. */
typedef struct {
    const void *query;
    Kv kv;
    const int32_t *tables, *context_lens, *starts;
    const float *sinks; /* or null */
    void *out;
    i64 query_token, query_head, stride_table;
    i64 num_seqs, block_size, num_kv_heads, group, head_dim, window; /* window 0: none */
    float scale, softcap;                                            /* softcap 0: none */
} AttentionOp;

/* How a panel's weights are stored: as numbers of x's type, or as whole numbers. Those of WHOLE_8 stand for themselves
 * times the scale of their output. Those of groups are a number of steps, their scale, above their zero, or above what
 * zero steps stand for. */
typedef enum { NUMBERS, WHOLE_8, GROUPS_8, GROUPS_4 } Stored;

/* A weight in panels (products.h, whole.h). `group` inputs of an output share scale, and zero or offset. */
typedef struct {
    const void *numbers;
    const float *scales; /* [panels][groups][PANEL]; NUMBERS have none */
    const int8_t *zeros; /* likewise; or null: 0 in 8 bits, 8 in 4 bits */
    const float *offsets; /* likewise, in place of zeros: the weight of number 0; or null */
    i64 stored, group;
} Panels;

typedef struct {
    const void *x;
    Panels panels;
    const void *bias; /* or null */
    void *out;
    i64 rows, stride_x, inputs, outputs;
} LinearOp;

typedef struct {
    void *x;
    i64 rows, size;
    float factor;
} ScaleOp;

/* Adapters of the outputs from `first` on: down [slots, most_rank, inputs], up [slots, most_rank, outputs]. */
typedef struct {
    const void *down, *up;
    const i64 *ranks; /* of each slot; 0: its adapter does not have this layer */
    i64 most_rank, first, outputs;
} AdapterPart;

typedef struct {
    i64 slot, begin, end; /* in `rows` */
} AdapterBlock;

typedef struct {
    const i64 *rows;
    const AdapterBlock *blocks;
    i64 num_blocks;
} AdapterRows;

typedef struct {
    const void *x;
    void *out;
    const AdapterPart *parts;
    const AdapterRows *rows;
    i64 stride_x, inputs, outputs, num_parts;
} AdapterOp;

/* The memory in which processes meet that compute the parts of the same layers (engine/group/sums.py). */
typedef struct {
    uint32_t *arrived, *sleeping; /* shared: arrivals in all, and processes that wait without a core */
    char *slots;                  /* shared: [2, size, slot_bytes] */
    i64 slot_bytes, rank, size, turn, meetings; /* of this process: the next slots, and the meetings so far */
} Group;

typedef struct {
    const Group *group;
    uint32_t arrivals; /* how many make this meeting complete */
} MeetOp;

/* out = the sum of all parts' slots */
typedef struct {
    const Group *group;
    void *out;
    i64 rows, size, turn;
} SumOp;

void *own_slot(const Group *group, i64 turn);
MeetOp meeting_of(const Group *group, i64 number);
Phase meet_phase(const MeetOp *a);
Phase sum_phase(const SumOp *a, int is_bf16);

Phase norm_phase(const NormOp *a, int is_bf16);
Phase gate_phase(const GateOp *a, int is_bf16);
Phase rope_phase(const RopeOp *a, int is_bf16);
Phase attention_phase(const AttentionOp *a, int is_bf16);
void attend_whole_f32(const void *a, i64 index);
void attend_whole_bf16(const void *a, i64 index);
Phase linear_phase(const LinearOp *a, int is_bf16);
Phase adapter_phase(const AdapterOp *a, int is_bf16);
Phase scale_phase(const ScaleOp *a, int is_bf16);
