"""Layers that give a token the same bits whatever else is in its step.

    row_tiles       on a CPU: matrix products in tiles of fixed heights
    tiled_experts   on a CPU: mixtures of experts, made of such products
    invariant_rows  on a GPU: linear layers and norms that compute each row alone

Attention that does so is `engine.model.attention.tiled_attention`. That they do so on this machine is checked
by `engine.calibration.determinism_check`.
"""
