/* Decoder layers one after the other, in one parallel region. */

#include <stdlib.h>

#include "ops.h"

typedef struct {
    Panels panels;
    const void *bias; /* or null */
    const AdapterPart *adapters;
    i64 inputs, outputs, num_parts; /* of adapters */
} Weight;

typedef struct {
    const void *weight; /* null: no norm */
    float eps;
    int unit_offset;
} Norm;

typedef struct {
    Weight qkv, output, gate_up, down;
    Norm query_norm, key_norm, after_attention, mlp_norm, after_mlp, next_norm;
    const float *sinks; /* or null */
    i64 rotation, window;
    float scale, softcap, attention_factor, mlp_factor; /* factor 1: none */
    int activation;
} Layer;

/* One step. `hidden` is the norm of `residual` before and after; the other buffers are for what is between. */
typedef struct {
    void *hidden, *residual, *qkv, *query, *attended, *added, *gate_up, *activated;
    Kv kv; /* the first layer's */
    const void *const *cos, *const *sin; /* of each rotation */
    const i64 *slots;
    const int32_t *tables, *context_lens, *starts;
    double *seconds; /* of each Kind, or null */
    const AdapterRows *adapters; /* or null: no row has one */
    Group *group; /* or null: the layers are whole */
    const i64 *wanted; /* the tokens whose `hidden` is wanted, ascending */
    i64 num_wanted;    /* -1: all are */
    i64 tokens, num_seqs, stride_table, kv_layer_stride, scale_layer_stride;
    i64 hidden_size, block_size, num_q_heads, num_kv_heads, head_dim, rotary_dim;
} Step;

typedef struct {
    LinearOp qkv, output, gate_up, down;
    AdapterOp qkv_adapters, output_adapters, gate_up_adapters, down_adapters;
    RopeOp rope;
    AttentionOp attention;
    GateOp gate;
    ScaleOp attention_scale, mlp_scale;
    NormOp after_attention, mlp_norm, after_mlp, next_norm;
    MeetOp meetings[2];
    SumOp sums[2];
} LayerOps;

enum { MOST_PHASES = 21 };

/* The tokens that a layer's attention and MLP compute. Those of sequence s are starts[s] to starts[s + 1] of them. */
typedef struct {
    i64 count;
    const int32_t *starts;
    const i64 *tokens, *places; /* each one's token, and each token's place among them or -1; null: all tokens */
} Kept;

static LinearOp linear_of(i64 rows, Weight weight, const void *x, void *out) {
    return (LinearOp){x, weight.panels, weight.bias, out, rows, weight.inputs, weight.inputs, weight.outputs};
}

/* Writes the phases of a linear layer: the product, and what adapters add to it. */
static Phase *add_linear(Phase *next, const LinearOp *linear, AdapterOp *adapters, Weight weight, const Step *step,
                         int is_bf16) {
    *next++ = linear_phase(linear, is_bf16);
    if (!step->adapters || !weight.num_parts) return next;
    *adapters = (AdapterOp){linear->x, linear->out, weight.adapters, step->adapters, linear->stride_x,
                            weight.inputs, weight.outputs, weight.num_parts};
    *next++ = adapter_phase(adapters, is_bf16);
    return next;
}

/* Writes the phases of a linear layer whose inputs the processes of a group share: each adds its part. */
static Phase *add_summed(Phase *next, LinearOp *linear, AdapterOp *adapters, Weight weight, const Step *step,
                         MeetOp *meeting, SumOp *sum, i64 number, int is_bf16) {
    Group *group = step->group;
    if (!group) return add_linear(next, linear, adapters, weight, step, is_bf16);
    *sum = (SumOp){group, linear->out, linear->rows, weight.outputs, group->turn + number};
    *meeting = meeting_of(group, number + 1);
    linear->out = own_slot(group, sum->turn);
    next = add_linear(next, linear, adapters, weight, step, is_bf16);
    *next++ = meet_phase(meeting);
    *next++ = sum_phase(sum, is_bf16);
    return next;
}

static NormOp norm_of(const Step *step, const Kept *kept, Norm norm, void *x, void *out) {
    i64 size = step->hidden_size;
    return (NormOp){x, 0, norm.weight, out, 0, 0, kept->count, size, size, size, norm.eps, norm.unit_offset};
}

/* Adds x to the residual, and norms the sum. */
static NormOp residual_norm_of(const Step *step, const Kept *kept, Norm norm, void *x, void *out) {
    NormOp op = norm_of(step, kept, norm, x, out);
    op.residual = step->residual;
    op.residual_places = kept->tokens;
    return op;
}

static Kv kv_of(const Step *step, i64 index, int is_bf16) {
    Kv kv = step->kv;
    i64 numbers = index * step->kv_layer_stride;
    kv.numbers = kv.scales ? (char *)kv.numbers + numbers : at(kv.numbers, numbers, is_bf16);
    if (kv.scales) kv.scales += index * step->scale_layer_stride;
    return kv;
}

static RopeOp rope_of(const Step *step, const Kept *kept, const Layer *layer, Kv kv, int is_bf16) {
    i64 size = step->head_dim, keys = step->num_q_heads * size, values = keys + step->num_kv_heads * size;
    i64 token = values + step->num_kv_heads * size, rotary = step->rotary_dim;
    return (RopeOp){
        step->qkv, at(step->qkv, keys, is_bf16), at(step->qkv, values, is_bf16),
        step->cos[layer->rotation], step->sin[layer->rotation], kv, step->slots,
        layer->query_norm.weight, layer->key_norm.weight, step->query, kept->places,
        step->tokens, token, size, token, size, token, size, rotary, rotary,
        step->block_size, step->num_q_heads, step->num_kv_heads, size, rotary / 2,
        layer->query_norm.eps, layer->query_norm.unit_offset,
    };
}

static AttentionOp attention_of(const Step *step, const Kept *kept, const Layer *layer, Kv kv) {
    i64 size = step->head_dim;
    return (AttentionOp){
        step->query, kv, step->tables, step->context_lens, kept->starts, layer->sinks, step->attended,
        step->num_q_heads * size, size, step->stride_table, step->num_seqs, step->block_size, step->num_kv_heads,
        step->num_q_heads / step->num_kv_heads, size, layer->window, layer->scale, layer->softcap,
    };
}

/* Writes the phases of a layer; returns what follows them. */
static Phase *add_layer(Phase *next, LayerOps *ops, const Layer *layer, const Step *step, const Kept *kept, i64 index,
                        int is_bf16) {
    const Kv kv = kv_of(step, index, is_bf16);
    void *added = step->added;
    i64 size = step->hidden_size, rows = kept->count;
    *ops = (LayerOps){
        .qkv = linear_of(step->tokens, layer->qkv, step->hidden, step->qkv),
        .rope = rope_of(step, kept, layer, kv, is_bf16),
        .attention = attention_of(step, kept, layer, kv),
        .output = linear_of(rows, layer->output, step->attended, added),
        .attention_scale = {added, rows, size, layer->attention_factor},
        .after_attention = norm_of(step, kept, layer->after_attention, added, added),
        .mlp_norm = residual_norm_of(step, kept, layer->mlp_norm, added, step->hidden),
        .gate_up = linear_of(rows, layer->gate_up, step->hidden, step->gate_up),
        .gate = {step->gate_up, step->activated, rows, layer->gate_up.outputs, layer->down.inputs,
                 layer->activation},
        .down = linear_of(rows, layer->down, step->activated, added),
        .mlp_scale = {added, rows, size, layer->mlp_factor},
        .after_mlp = norm_of(step, kept, layer->after_mlp, added, added),
        .next_norm = residual_norm_of(step, kept, layer->next_norm, added, step->hidden),
    };
    ops->next_norm.out_places = kept->tokens;
    next = add_linear(next, &ops->qkv, &ops->qkv_adapters, layer->qkv, step, is_bf16);
    *next++ = rope_phase(&ops->rope, is_bf16);
    *next++ = attention_phase(&ops->attention, is_bf16);
    next = add_summed(next, &ops->output, &ops->output_adapters, layer->output, step, &ops->meetings[0],
                      &ops->sums[0], 2 * index, is_bf16);
    if (layer->attention_factor != 1.0f) *next++ = scale_phase(&ops->attention_scale, is_bf16);
    if (layer->after_attention.weight) *next++ = norm_phase(&ops->after_attention, is_bf16);
    *next++ = norm_phase(&ops->mlp_norm, is_bf16);
    next = add_linear(next, &ops->gate_up, &ops->gate_up_adapters, layer->gate_up, step, is_bf16);
    *next++ = gate_phase(&ops->gate, is_bf16);
    next = add_summed(next, &ops->down, &ops->down_adapters, layer->down, step, &ops->meetings[1], &ops->sums[1],
                      2 * index + 1, is_bf16);
    if (layer->mlp_factor != 1.0f) *next++ = scale_phase(&ops->mlp_scale, is_bf16);
    if (layer->after_mlp.weight) *next++ = norm_phase(&ops->after_mlp, is_bf16);
    *next++ = norm_phase(&ops->next_norm, is_bf16);
    return next;
}

/* Returns the tokens that the last layer computes beside keys and values: those that are wanted, and those behind one
 * that is in the same sequence. Writes them to memory for num_seqs + 1 starts, and tokens and places of all. */
static Kept kept_of(const Step *step, void *memory) {
    i64 *tokens = memory, *places = tokens + step->tokens, count = 0, next = 0;
    int32_t *starts = (int32_t *)(places + step->tokens);
    for (i64 seq = 0; seq < step->num_seqs; seq++) {
        starts[seq] = (int32_t)count;
        while (next < step->num_wanted && step->wanted[next] < step->starts[seq]) next++;
        i64 first = next < step->num_wanted ? step->wanted[next] : step->tokens;
        for (i64 token = step->starts[seq]; token < step->starts[seq + 1]; token++) {
            places[token] = token < first ? -1 : count;
            if (token >= first) tokens[count++] = token;
        }
    }
    starts[step->num_seqs] = (int32_t)count;
    return (Kept){count, starts, tokens, places};
}

/* Runs layers one after the other, all of them at once on all threads. Returns 0 if there is no memory. */
int baton_layers(Parallel parallel, int threads, int is_bf16, const Layer *layers, i64 count, const Step *step) {
    LayerOps *ops = malloc((size_t)count * sizeof *ops);
    Phase *phases = aligned_alloc(64, (size_t)count * MOST_PHASES * sizeof *phases), *next = phases;
    void *memory = malloc((size_t)(2 * step->tokens * 8 + (step->num_seqs + 1) * 4));
    int has_memory = ops && phases && memory;
    if (has_memory) {
        const Kept all = {step->tokens, step->starts, 0, 0}, last = step->num_wanted < 0 ? all : kept_of(step, memory);
        for (i64 i = 0; i < count; i++)
            next = add_layer(next, &ops[i], &layers[i], step, i < count - 1 ? &all : &last, i, is_bf16);
        run(parallel, threads, &(Program){phases, next - phases, step->seconds});
        if (step->group) step->group->meetings += 2 * count; /* an even number: the turn stays the same */
    }
    free(ops);
    free(phases);
    free(memory);
    return has_memory;
}
