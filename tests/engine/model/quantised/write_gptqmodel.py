r"""Write layers by gptqmodel, and the weights that it reads of them, to the file that `test_gptqmodel` reads.

gptqmodel asks for newer packages than ours, and for many of its own. So it gets an environment that borrows
torch and transformers of this one. In the root of the checkout:

    .venv/bin/python -m venv .venv-gptqmodel
    .venv/bin/python -c 'import site; print(*site.getsitepackages())' \
        > "$(.venv-gptqmodel/bin/python -c 'import site; print(*site.getsitepackages())')/ours.pth"
    .venv-gptqmodel/bin/pip install --no-deps gptqmodel==7.7.0 accelerate==1.15.0 defuser==0.0.28 \
        device-smi==0.5.7 dill==0.4.1 logbar==0.4.15 pypcre==0.6.4 threadpoolctl==3.8.0 tokenicer==0.0.14
    .venv-gptqmodel/bin/python -m tests.engine.model.quantised.write_gptqmodel
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.quantization import FORMAT, METHOD, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model import (
    convert_gptq_v1_to_v2_format_module,
    convert_gptq_v2_to_v1_format_module,
)
from safetensors.torch import save_file
from torch import Tensor, nn

FILE = Path(__file__).with_name("gptqmodel.safetensors")
INPUTS, OUTPUTS, GROUP = 128, 32, 32
FORMS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "format": FORMAT.GPTQ, "sym": True},
    "gptq_asymmetric": {"bits": 4, "format": FORMAT.GPTQ, "sym": False},
    "gptq_v2": {"bits": 4, "format": FORMAT.GPTQ_V2, "sym": False},
    "gptq_desc_act": {"bits": 4, "format": FORMAT.GPTQ, "sym": False, "desc_act": True},
    "gptq_8_bits": {"bits": 8, "format": FORMAT.GPTQ, "sym": False},
    "gptq_8_bits_desc_act": {"bits": 8, "format": FORMAT.GPTQ_V2, "sym": False, "desc_act": True},
    "awq": {"bits": 4, "quant_method": METHOD.AWQ, "format": FORMAT.GEMM, "sym": False},
}


def main() -> None:
    tensors: dict[str, Tensor] = {}
    configs: dict[str, dict[str, Any]] = {}
    for form, fields in FORMS.items():
        config = QuantizeConfig(group_size=GROUP, **fields)
        torch.manual_seed(len(tensors))
        stored, weight = awq(config) if fields["format"] is FORMAT.GEMM else gptq(config)
        tensors |= {f"{form}.{name}": tensor.contiguous() for name, tensor in stored.items()}
        tensors[f"{form}.weight"] = weight.contiguous()
        configs[form] = config.to_dict()
        del configs[form]["meta"]
    save_file(tensors, FILE, {"configs": json.dumps(configs)})


def parameters(config: Any) -> tuple[nn.Linear, Tensor, Tensor]:
    """Return a layer, and scales and zeros [out, in / GROUP]; each zero that the format has is there."""
    linear = nn.Linear(INPUTS, OUTPUTS, bias=False)
    scales = torch.rand(OUTPUTS, INPUTS // GROUP) / 64 / config.bits
    most = 2**config.bits
    zeros = torch.full(scales.shape, most // 2) if config.sym else torch.arange(scales.numel()) % most
    return linear, scales, zeros.view(scales.shape).float()


def gptq(config: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Return the tensors of a layer as a checkpoint has them, and what gptqmodel reads of those."""
    sizes = {"in_features": INPUTS, "out_features": OUTPUTS, "register_buffers": True}
    shape = {"bits": config.bits, "group_size": GROUP, "sym": config.sym, "desc_act": config.desc_act}
    groups = torch.arange(INPUTS) // GROUP
    made = TorchLinear(**shape, **sizes)
    made.pack_original(*parameters(config), groups[torch.randperm(INPUTS)] if config.desc_act else groups)
    if config.format is FORMAT.GPTQ:
        convert_gptq_v2_to_v1_format_module(made, config)
    stored = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    stored["g_idx"] = stored["g_idx"].int()
    read = TorchLinear(**shape, **sizes).eval()
    read.load_state_dict(stored)
    if config.format is FORMAT.GPTQ:
        convert_gptq_v1_to_v2_format_module(read, config.bits, torch.int32)
    return stored, read.dequantize_weight().t()


def awq(config: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Do the same for AWQ."""
    made = AwqTorchLinear(config.bits, GROUP, config.sym, False, INPUTS, OUTPUTS)
    made.pack(*parameters(config))
    stored = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}
    return stored, dequantize_gemm(**stored, bits=config.bits, group_size=GROUP).t()


if __name__ == "__main__":
    main()
