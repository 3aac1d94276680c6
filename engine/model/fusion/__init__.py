"""Hot modules of a loaded transformers model, replaced by fused ones that were checked to compute the same.

    report = fuse(module, dry_run(directory, module, device))

    replacing   replaces layer after layer
    structure   which models have the parts that are fused, and where
    modules     the fused modules
    cpu_layers  linear layers with weights in the order in which a CPU reads them, and all layers in one call
    places      where a fused model computes what a stock layer did
    probe       runs a layer before and after, and compares

A decoder layer's query, key and value products become one, and so do those of its gate. Norms include the
addition of the residual. Rotation and the KV store are one op. The ops are Triton's on a GPU and
`kernels.native` on a CPU. A layer keeps its own modules where it lacks these parts, and a model that fits
nothing keeps them all.
"""

from engine.model.fusion.cpu_layers import NativeSequence, can_be_native
from engine.model.fusion.places import fused_place
from engine.model.fusion.replacing import NOT_FUSED, FusionReport, fuse

__all__ = ["NOT_FUSED", "FusionReport", "NativeSequence", "can_be_native", "fuse", "fused_place"]
