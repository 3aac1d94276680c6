/* What Python calls first, and single ops. */

#include "ops.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Returns the digest of the sources that the library was compiled from (build.py). */
const char *baton_source_digest(void) { return SOURCE_DIGEST; }

/* Returns whether this process may use all instructions that the library was compiled for. */
int baton_prepare(void) {
#if defined(__AMX_BF16__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; /* asm/prctl.h, of newer kernels */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 1;
#endif
}

static void run_phase_alone(Parallel parallel, int threads, Phase only) {
    run(parallel, threads, &(Program){.phases = &only, .count = 1});
}

#define OP(NAME, TYPE, PHASE)                                                       \
    void NAME(Parallel parallel, int threads, int is_bf16, const TYPE *arguments) { \
        run_phase_alone(parallel, threads, PHASE(arguments, is_bf16));              \
    }
OP(baton_add_rms_norm, NormOp, norm_phase)
OP(baton_gated_activation, GateOp, gate_phase)
OP(baton_rope_store_kv, RopeOp, rope_phase)
OP(baton_paged_attention, AttentionOp, attention_phase)
OP(baton_linear, LinearOp, linear_phase)
OP(baton_add_adapters, AdapterOp, adapter_phase)
