"""Hot modules of a loaded transformers model, replaced by fused ones that were seen to do the same.

    report = fuse(module, dry_run(directory, module, device))

A decoder layer's query, key and value products become one, and so do those of its gate; norms take the
residual's addition with them; rotation and the KV store are one op. What a family's layers do not have keeps
its own modules, and a family that fits nothing keeps them all.
"""

from engine.model.fusion.replacing import NOT_FUSED, FusionReport, fuse

__all__ = ["NOT_FUSED", "FusionReport", "fuse"]
