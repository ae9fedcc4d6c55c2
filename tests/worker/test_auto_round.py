"""AutoRound checkpoints: the layouts of GPTQ and AWQ, with settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from penstock.faults import BadModel
from penstock.quant import read_methods
from penstock.quant.awq import Awq
from penstock.quant.gptq import Gptq
from quantized import HOST, Quantize, assert_equal_model, assert_equal_ranks, quantized
from test_awq import awq
from test_gptq import gptq
from torch import Tensor

DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def settings(**changes: Any) -> dict[str, Any]:
    """As AutoRound 0.16 writes them."""
    config = {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "data_type": "int",
        "block_name_to_quantize": "model.layers",
        "autoround_version": "0.16.1",
        "iters": 1000,
        "lr": 0.001,
    }
    return {name: value for name, value in (config | changes).items() if value is not None}


OLDER = {
    "quant_method": "intel/auto-round",
    "packing_format": None,
    "backend": "auto_round:gptq:exllamav2",
    "block_name_to_quantize": None,
    "act_bits": 16,
    "act_dynamic": True,
}
ROUNDED = {
    "gptq": {},
    "older": OLDER,
    "8 bits, rows": {"bits": 8, "group_size": -1},
    "own layout": {"packing_format": "auto_round", "sym": False},
    "own layout for a kernel": {"packing_format": "auto_round:tritonv2", "sym": False},
    "gptqmodel": {"packing_format": "auto_round:gptqmodel", "sym": False},
    "awq": {"packing_format": "auto_round:auto_awq", "sym": False},
}


def auto_round(config: Mapping[str, Any]) -> Quantize:
    """What AutoRound stores: only GPTQModel's layout has a g_idx, only GPTQ's has zeros minus 1."""
    packing = config.get("packing_format") or config["backend"]
    if "awq" in packing:
        return awq(config["group_size"])
    less_one = "gptq" in packing and "gptqmodel" not in packing
    form = {"checkpoint_format": "gptq" if less_one else "gptq_v2", "desc_act": False}
    write = gptq({**config, **form})

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        stored, exact = write(matrix)
        left_out = () if "gptqmodel" in packing else ("g_idx",)
        return {name: part for name, part in stored.items() if name not in left_out}, exact

    return quantize


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
@pytest.mark.parametrize("name", ROUNDED)
def test_auto_round(
    checkpoint: Callable[[str], Path], check: Callable[..., None], name: str, tmp_path: Path
) -> None:
    config = settings(**ROUNDED[name])
    check(*quantized(checkpoint("llama31"), tmp_path, auto_round(config), config))


def test_modules_of_16_bits_and_outside_the_blocks_stay_plain(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = settings(
        block_name_to_quantize=["model.layers.1", "model.layers.2"],
        extra_config={r".*o_proj.*": {"bits": 16}, "model.layers.1.mlp.up": {"bits": 16}},
    )
    kept = r"lm_head|layers\.0\.|o_proj"
    path = checkpoint("llama31")
    assert_equal_model(*quantized(path, tmp_path, auto_round(config), config, kept))


def test_names_come_before_expressions() -> None:
    extra = {
        r".*\.mlp\..*": {"bits": 8, "group_size": 64},
        DOWN: {"group_size": 16, "act_bits": 16},
        "lm_head": {"bits": 8, "group_size": -1, "sym": False, "data_type": "int"},
    }
    raw = {"quantization_config": settings(extra_config=extra)}
    methods = read_methods(raw, torch.float32, HOST)

    def layout(path: str) -> tuple[int, int, bool]:
        found = methods.of(path)
        assert isinstance(found, Gptq)
        return found.layout.bits, found.layout.grouping.size, found.layout.symmetric

    assert layout(DOWN) == (4, 16, True)
    assert layout("model.layers.0.mlp.up_proj") == (8, 64, True)
    assert layout("model.layers.0.self_attn.q_proj") == (4, 32, True)
    assert layout("lm_head") == (8, 0, False)
    assert methods.of("model.vision.0.mlp_proj") is methods.plain


def test_heads_are_plain_where_no_blocks_are_named() -> None:
    raw = {"quantization_config": settings(**OLDER)}
    methods = read_methods(raw, torch.float32, HOST)
    assert methods.of("lm_head") is methods.plain
    assert methods.of("model.layers.0.mlp.up_proj") is not methods.plain


def test_the_layout_of_awq_has_four_bits() -> None:
    config = settings(packing_format="auto_round:auto_awq")
    methods = read_methods({"quantization_config": config}, torch.float32, HOST)
    assert isinstance(methods.of(DOWN), Awq)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 3}, "bits 3 is not supported; supported: 4, 8"),
        ({"bits": 8, "packing_format": "auto_round:auto_awq"}, "bits 8 is not supported"),
        ({"data_type": "mx_fp"}, "data_type 'mx_fp' is not supported; supported: 'int'"),
        ({"act_bits": 8}, "act_bits 8 is not supported; supported: 16, 32"),
        ({"group_size": 24}, "group_size 24 is not supported"),
        (
            {"packing_format": "auto_round:llm_compressor"},
            "packing_format 'auto_round:llm_compressor' is not supported; supported: 'auto_round', "
            "'auto_round:auto_gptq'",
        ),
        ({"packing_format": 4}, "packing_format 4 is not supported"),
        ({"block_name_to_quantize": 3}, "block_name_to_quantize must be names of blocks, found 3"),
        ({"rotation_config": {"kind": "hadamard"}}, r"rotation_config {.*} is not supported"),
        ({"extra_config": [DOWN]}, "extra_config must be an object"),
        ({"extra_config": {DOWN: 8}}, rf"extra_config\.{DOWN} must be an object, found 8"),
        ({"extra_config": {DOWN: {"bits": 2}}}, rf"extra_config\.{DOWN}\.bits 2 is not supported"),
        ({"extra_config": {DOWN: {"super_bits": 6}}}, "super_bits 6 is not supported"),
        ({"extra_config": {"*": {"bits": 8}}}, r"extra_config\.\* is no regular expression"),
    ],
)
def test_settings_are_refused_by_name(changes: dict[str, Any], text: str) -> None:
    config = settings(**changes)
    with pytest.raises(BadModel, match=text):
        read_methods({"quantization_config": config}, torch.float32, HOST)
