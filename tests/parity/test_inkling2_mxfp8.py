"""Experts of Inkling 2 in mxfp8: their tensors say so, and config.json may not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, reference, write
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.models.inkling2 import Inkling2Text
from penstock.parallel import Group
from penstock.quant import MxFp8, with_stored_experts
from quantized import assert_equal_model, assert_equal_ranks
from ranks import assert_ranks_agree
from safetensors.torch import load_file, save_file
from test_dense_families import PLAIN
from test_inkling2 import assert_equal, with_images
from test_mxfp8 import mxfp8
from torch import Tensor
from transformers.core_model_loading import Interleave
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

WEIGHTS = "model.safetensors"
SIZES = {"intermediate_size": 128}  # four ranks have whole groups
EXPERTS = "model.llm.layers.1.mlp.experts"
# What transformers 5.23 adds to published files.
QUANTIZED: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [1, 32]}
QUANTIZED |= {"scale_fmt": "ue8m0"}
QUANTIZED |= {"modules_to_not_convert": ["lm_head", "model.language_model.layers.*.self_attn"]}


@dataclass(frozen=True)
class Pair:
    """A checkpoint with experts in mxfp8, and another of what they stand for, in float64."""

    stored: Path
    exact: Path


def in_mxfp8(path: Path, directory: Path) -> Pair:
    """Writes both checkpoints."""
    stored: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, tensor in load_file(path / WEIGHTS).items():
        stored[name] = tensor
        exact[name] = tensor.double() if tensor.is_floating_point() else tensor
        if re.search(r"experts\.w(13|2)_weight$", name):
            made = [mxfp8()(matrix) for matrix in tensor]
            exact[name] = torch.stack([one for _, one in made])
            stored[name] = torch.stack([parts["weight"] for parts, _ in made])
            stored[f"{name}_scale"] = torch.stack([parts["weight_scale"] for parts, _ in made])
    pair = Pair(directory / "stored", directory / "exact")
    raw = json.loads((path / "config.json").read_text())
    for folder, tensors, extra in (
        (pair.stored, stored, {}),
        (pair.exact, exact, {"dtype": "float64"}),
    ):
        folder.mkdir()
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**raw, **extra}))
    return pair


def copied(path: Path, directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """The checkpoint with other tensors."""
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    (directory / "config.json").write_text((path / "config.json").read_text())
    return directory


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("inkling2")
    return in_mxfp8(write(folder / "plain", **{**CASES["inkling2"], **SIZES}), folder)


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_the_model_computes_what_its_experts_stand_for(
    pair: Pair, check: Callable[..., None]
) -> None:
    check(pair.stored, pair.exact)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_ranks_agree(pair: Pair, ranks: int, expert_parallel: bool) -> None:
    assert_ranks_agree(pair.stored, PLAIN, ranks, expert_parallel=expert_parallel)


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_experts_that_stay_codes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, check: Callable[..., None]
) -> None:
    """As on a device that keeps them."""
    never = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(MxFp8, "on_cpu", never, raising=False)
    check(pair.stored, pair.exact)


def test_config_json_may_say_what_transformers_writes(pair: Pair, tmp_path: Path) -> None:
    """Its list of modules has transformers' names, which are not those of tensors."""
    path = copied(pair.stored, tmp_path, lambda _: None)
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "quantization_config": QUANTIZED}))
    assert_equal_model(path, pair.exact)


def test_text_of_a_checkpoint_with_images(pair: Pair, tmp_path: Path) -> None:
    """As published: config.json does not say that experts are in mxfp8."""
    path = with_images(pair.stored, tmp_path)
    assert "quantization_config" not in json.loads((path / "config.json").read_text())
    assert_equal(path, reference(pair.exact, torch.float64))


def test_scales_are_what_transformers_reads_in_them(pair: Pair) -> None:
    """By its ops: its model leaves these scales out where it has no GPU."""
    stored, exact = load_file(pair.stored / WEIGHTS), load_file(pair.exact / WEIGHTS)

    def apart(name: str) -> Tensor:
        """Gates, then ups."""
        found: dict[str, Tensor] = Interleave(1).convert({name: stored[name]}, [], [name])
        return found[name]

    def read(codes: Tensor, scales: Tensor) -> Tensor:
        found: Tensor = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float64)
        return found

    name = f"{EXPERTS}.w13_weight"
    gates_and_ups = torch.cat((exact[name][:, 0::2], exact[name][:, 1::2]), 1)
    assert torch.equal(read(apart(name), apart(f"{name}_scale")), gates_and_ups)
    name = f"{EXPERTS}.w2_weight"
    assert torch.equal(read(stored[name], stored[f"{name}_scale"]), exact[name])


def drop(*suffixes: str) -> Callable[[dict[str, Tensor]], Any]:
    """A change that takes tensors of all layers away."""
    return lambda tensors: [
        tensors.pop(name) for name in [*tensors] if name.endswith(tuple(suffixes))
    ]


def put(suffix: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], Any]:
    """A change of one tensor."""
    name = f"{EXPERTS}.{suffix}"
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda tensors: tensors.pop(f"{EXPERTS}.w13_weight_scale"),
            f"lacks tensors: {EXPERTS}.w13_weight_scale",
        ),
        (drop("w2_weight_scale"), "lacks tensors: model.llm.layers.0.mlp.experts.w2_weight_scale"),
        (
            drop("w13_weight_scale"),
            "has unknown tensors: model.llm.layers.0.mlp.experts.w2_weight_",
        ),
        (
            drop("w13_weight_scale", "w2_weight_scale"),
            "w13_weight is float8_e4m3fn, but its layer takes float32",
        ),
        (
            put("w13_weight_scale", lambda t: t[..., :1]),
            f"{EXPERTS}.w13_weight_scale has shape [8, 256, 1], but config.json makes it [8, 256,",
        ),
        (
            put("w2_weight_scale", lambda t: t.float()),
            f"{EXPERTS}.w2_weight_scale is float32, but its layer takes uint8",
        ),
        (
            put("w2_weight", lambda t: t.float().bfloat16()),
            f"{EXPERTS}.w2_weight is bfloat16, but its layer takes float8_e4m3fn",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    pair: Pair, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], text: str
) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(copied(pair.stored, tmp_path, change))


def test_shares_that_cut_groups_are_refused(pair: Pair) -> None:
    raw, names = read_config(pair.stored), load_file(pair.stored / WEIGHTS)
    methods = with_stored_experts(PLAIN, Inkling2Text.expert_scales, names)
    build = Build(torch.float64, torch.device("cpu"), Group(0, 8), methods, 128)
    text = r"mxfp8 has groups of 32 inputs, but .* has 16 inputs; use fewer ranks, or share out"
    with pytest.raises(BadModel, match=text):
        Inkling2Text(Inkling2Text.read_config(raw), build)


@pytest.mark.parametrize("quantize", ["int4", "fp8"])
def test_another_format_is_refused(pair: Pair, quantize: str) -> None:
    with pytest.raises(Refused, match=r"experts are in mxfp8 .* contradicts --quantize"):
        LocalWorker().load(pair.stored, quantize=quantize)
