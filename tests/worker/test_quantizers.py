"""What quantizers write in quantization_config is read, fields without effect too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from penstock.faults import BadModel
from penstock.quant import Methods, Packed, read_methods
from penstock.quant.awq import Awq
from penstock.quant.bitsandbytes import FourBitMatrix, StoredInt8
from penstock.quant.compressed_ints import Ints
from penstock.quant.eetq import Eetq
from penstock.quant.fp8 import Fp8
from penstock.quant.gptq import Gptq
from penstock.quant.methods import beginnings
from penstock.quant.mx import MxFp4, NvFp4
from penstock.quant.mxfp8 import MxFp8
from quantized import HOST
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils import quantization_config as theirs

UP = "model.layers.0.mlp.up_proj"
PRESETS: dict[str, tuple[str, type]] = {
    "FP8": ("float-quantized", Fp8),
    "FP8_BLOCK": ("float-quantized", Fp8),
    "FP8_DYNAMIC": ("float-quantized", Fp8),
    "MXFP4": ("mxfp4-pack-quantized", MxFp4),
    "MXFP8": ("mxfp8-quantized", MxFp8),
    "NVFP4": ("nvfp4-pack-quantized", NvFp4),
    "W4A16": ("pack-quantized", Ints),
    "W4A16_ASYM": ("pack-quantized", Ints),
    "W8A16": ("pack-quantized", Ints),
    "W8A8": ("int-quantized", Ints),
}


def compressed(preset: str) -> dict[str, Any]:
    """As the library describes a preset scheme."""
    config = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(preset, ["Linear"])},
        ignore=["lm_head"],
        format=PRESETS[preset][0],
        quantization_status="compressed",
    )
    found: dict[str, Any] = json.loads(config.model_dump_json())
    return found


CLASSES: dict[str, tuple[Any, type]] = {
    "AutoRound": (theirs.AutoRoundConfig(), Gptq),
    "AWQ": (theirs.AwqConfig(), Awq),
    "AWQ, symmetric": (theirs.AwqConfig(zero_point=False), Awq),
    "bitsandbytes, 4 bits": (theirs.BitsAndBytesConfig(load_in_4bit=True), FourBitMatrix),
    "bitsandbytes, 8 bits": (theirs.BitsAndBytesConfig(load_in_8bit=True), StoredInt8),
    "EETQ": (theirs.EetqConfig(), Eetq),
    "fbgemm fp8": (theirs.FbgemmFp8Config(), Fp8),
    "fine-grained fp8": (theirs.FineGrainedFP8Config(), Fp8),
    "GPTQ": (theirs.GPTQConfig(bits=4), Gptq),
    "GPTQ, v2": (theirs.GPTQConfig(bits=8, sym=False, format="gptq_v2", desc_act=True), Gptq),
    "mxfp4": (theirs.Mxfp4Config(), MxFp4),
} | {
    f"compressed-tensors, {name}": (theirs.CompressedTensorsConfig(**compressed(name)), method)
    for name, (_, method) in PRESETS.items()
}


def read(config: dict[str, Any]) -> Methods:
    return read_methods({"quantization_config": config}, torch.float32, HOST)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_transformers(name: str) -> None:
    """As `save_pretrained` writes them."""
    config, method = CLASSES[name]
    assert isinstance(read(json.loads(json.dumps(config.to_dict()))).of(UP), method)


GPTQMODEL: dict[str, Any] = {
    "bits": 4,
    "group_size": 128,
    "desc_act": False,
    "lm_head": False,
    "pack_dtype": "int32",
    "meta": {
        "quantizer": ["gptqmodel:7.7.0"],
        "uri": "https://github.com/modelcloud/gptqmodel",
        "fallback": {"strategy": "rtn", "threshold": "0.5%", "smooth": None},
        "offload_to_disk": True,
        "mse": 0.0,
        "act_group_aware": True,
    },
}
GPTQMODEL_GPTQ = {
    **GPTQMODEL,
    "method": "gptq",
    "quant_method": "gptq",
    "format": "gptq",
    "checkpoint_format": "gptq",
    "sym": True,
}
GPTQMODEL_AWQ = {
    **GPTQMODEL,
    "method": "awq",
    "quant_method": "awq",
    "format": "gemm",
    "checkpoint_format": "gemm",
    "version": "gemm",
    "zero_point": True,
}
AUTO_ROUND: dict[str, Any] = {
    "autoround_version": "0.16.1",
    "bits": 4,
    "data_type": "int",
    "enable_quanted_input": False,
    "group_size": 32,
    "iters": 1000,
    "lr": 0.001,
    "provider": "auto-round",
    "sym": True,
}
AUTO_ROUND_GPTQ = {
    **AUTO_ROUND,
    "quant_method": "gptq",
    "damp_percent": 0.01,
    "desc_act": False,
    "lm_head": False,
    "true_sequential": False,
}
AUTO_ROUND_AWQ = {
    **AUTO_ROUND,
    "quant_method": "awq",
    "modules_to_not_convert": ["lm_head"],
    "to_quant_block_names": "model.layers",
    "version": "gemm",
    "zero_point": False,
}
AUTO_ROUND_OWN = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 32,
    "sym": True,
    "data_type": "int",
    "iters": 0,
    "model_free": True,
    "autoround_version": "0.16.1",
    "block_name_to_quantize": "model.layers",
    "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
}
RULES = {"dynamic": {"+:.*down_proj.*": {"bits": 8, "group_size": 64, "sym": True}}}
WRITTEN: dict[str, tuple[dict[str, Any], type[Packed]]] = {
    "GPTQModel, GPTQ": (GPTQMODEL_GPTQ, Gptq),
    "GPTQModel, AWQ": (GPTQMODEL_AWQ, Awq),
    "GPTQModel, symmetric AWQ": ({**GPTQMODEL_AWQ, "zero_point": False}, Awq),
    "AutoRound, GPTQ": (AUTO_ROUND_GPTQ, Gptq),
    "AutoRound, GPTQ with rules": ({**AUTO_ROUND_GPTQ, **RULES}, Gptq),
    "AutoRound, AWQ": (AUTO_ROUND_AWQ, Awq),
    "AutoRound, its own": (AUTO_ROUND_OWN, Gptq),
    "AutoRound, fp8": ({**compressed("FP8"), "provider": "auto-round"}, Fp8),
    "AutoRound, nvfp4": ({**compressed("NVFP4"), "provider": "auto-round"}, NvFp4),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_quantizers(name: str) -> None:
    """GPTQModel 7.7 and AutoRound 0.16."""
    config, method = WRITTEN[name]
    methods = read(config)
    assert isinstance(methods.of(UP), method)
    assert methods.of("lm_head") is methods.plain


@pytest.mark.parametrize(
    ("config", "change", "text"),
    [
        (GPTQMODEL_GPTQ, {"method": "qqq"}, "method 'qqq' is not supported; supported: 'gptq'"),
        (GPTQMODEL_GPTQ, {"activation": {"mode": "w4a8"}}, "activation {'mode': 'w4a8'} is not"),
        (GPTQMODEL_GPTQ, {"rotation": "hadamard"}, "rotation 'hadamard' is not supported"),
        (GPTQMODEL_GPTQ, {"sym": "no"}, "sym 'no' is not supported; supported: True, False"),
        (GPTQMODEL_AWQ, {"method": "gptq"}, "method 'gptq' is not supported; supported: 'awq'"),
        (GPTQMODEL_AWQ, {"checkpoint_format": "gemv"}, "checkpoint_format 'gemv' is not supported"),
        (GPTQMODEL_AWQ, {"pack_dtype": "int16"}, "pack_dtype 'int16' is not supported"),
        (GPTQMODEL_AWQ, {"desc_act": True}, "desc_act True is not supported"),
        (GPTQMODEL_AWQ, {"lm_head": True}, "lm_head True is not supported"),
        (AUTO_ROUND_GPTQ, {"data_type": "mx_fp"}, "data_type 'mx_fp' is not supported"),
        (AUTO_ROUND_AWQ, {"act_bits": 8}, "act_bits 8 is not supported; supported: 16, 32"),
        (AUTO_ROUND_AWQ, {"rotation_config": {"block": 32}}, "rotation_config {'block': 32} is"),
    ],
)
def test_fields_with_an_effect_are_refused_by_name(
    config: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadModel, match=f"quantization_config.{text}"):
        read({**config, **change})


MODULES = [
    "lm_head",
    "model.embed_tokens",
    *(f"model.layers.{at}.{end}" for at in (0, 1, 10, 11) for end in (
        "self_attn", "self_attn.q_proj", "self_attn.o_proj", "mlp", "mlp.gate", "mlp.gate_proj",
        "mlp.down_proj", "mlp.experts.0.up_proj", "mlp.shared_expert_gate",
    )),
    "model.language_model.layers.1.mlp.up_proj",
    "model.vision_tower.blocks.1.fc1",
]  # fmt: skip
LISTS: list[list[str]] = [
    [],
    ["lm_head"],
    ["model.layers.1"],
    ["model.layers.1."],
    ["model.layers.1.mlp."],
    ["proj"],
    ["gate"],
    ["gate_proj", "expert_gate"],
    ["layers.1.mlp.down_proj"],
    [r"model\.layers\.\d+\.mlp\.gate"],
    ["model.layers.*.self_attn"],
    ["model.layers.(0|10).mlp", r"(.)odel.(language)_model.*"],
    ["model.layers.[01].mlp.gate|lm"],
    ["^model.layers.1$", ".*down_proj"],
    ["model.vision_tower", "mlp.gate", "embed_tokens"],
]


@pytest.mark.parametrize("listed", LISTS, ids=str)
@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignored_layers"])
def test_modules_are_kept_that_transformers_keeps(listed: list[str], field: str) -> None:
    methods = read({"quant_method": "fp8", field: listed})
    found = {path for path in MODULES if methods.of(path) is methods.plain}
    kept = {path for path in MODULES if not should_convert_module(path, ["lm_head", *listed])}
    assert found == kept


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        (["mlp"], r"\.mlp"),
        (["experts", "language_model.layers"], r"\.experts\.|language_model"),
        (["layers.1"], r"layers\.1\."),
        (["*.1.mlp"], r"\.1\.mlp"),  # no expression
    ],
)
def test_components_are_kept_anywhere_in_a_path(listed: list[str], kept: str) -> None:
    """vLLM and AutoAWQ keep these modules; transformers does not."""
    methods = read({"quant_method": "awq", "group_size": 32, "modules_to_not_convert": listed})
    found = {path for path in MODULES if methods.of(path) is methods.plain}
    assert found == {path for path in MODULES if re.search(f"{kept}|lm_head", path)}


def test_many_names_are_matched_in_one_expression() -> None:
    """Checkpoints of mixtures name hundreds of modules and have ten thousands of matrices."""
    listed = [f"model.layers.{at}.mlp.gate" for at in range(400)]
    assert len(beginnings(listed)) == 1
    assert len(beginnings([*listed, r"a\.b", "(c)", "*d"])) == 3
