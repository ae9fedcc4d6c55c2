"""bitsandbytes: checkpoints that the library wrote through transformers, and while loading."""

from __future__ import annotations

import builtins
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from checkpoints import reference
from local import LocalWorker, Refused
from penstock.faults import BadModel, BadSetting
from penstock.quant import FourBit, Int8, Unquantized, read_methods
from quantized import (
    HOST,
    UP,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    drop,
    put,
    quantized,
    wide,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

# Blocks of 64 numbers divide the inputs of two ranks; ranks and parts cut blocks of 256 scales.
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
FORMATS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-nested": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "fp4-nested": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
Made = Callable[[str, str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A case's checkpoint in a format, made once."""

    @cache
    def make(case: str, name: str) -> tuple[Path, Any]:
        return by_transformers(case, tmp_path_factory.mktemp("made"), **FORMATS[name])

    return make


def by_transformers(case: str, folder: Path, **config: Any) -> tuple[Path, Any]:
    """A checkpoint, and a model with the matrices that transformers reads in it."""
    base, path = wide(case, folder, **SIZES), folder / "quantized"
    load = AutoModelForCausalLM.from_pretrained
    made = load(base, quantization_config=BitsAndBytesConfig(**config), device_map="cpu")
    made.save_pretrained(path)
    exact = reference(base, torch.float64)
    exact.load_state_dict(load(path, device_map="cpu").dequantize().state_dict())
    return path, exact


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_the_model_computes_what_transformers_reads(made: Made, case: str, name: str) -> None:
    assert_equal_model(*made(case, name))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_two_ranks(made: Made, case: str, name: str) -> None:
    assert_equal_ranks(*made(case, name))


@pytest.mark.parametrize("name", ["int8", "nf4"])
def test_a_method_without_a_name(made: Made, name: str, tmp_path: Path) -> None:
    """As transformers before 4.33 wrote the settings."""
    path, exact = made("llama31", name)
    older = Path(shutil.copytree(path, tmp_path / "older"))
    raw = json.loads((older / "config.json").read_text())
    raw["quantization_config"] = {
        field: value
        for field, value in raw["quantization_config"].items()
        if field != "quant_method" and not field.startswith("_")
    }
    (older / "config.json").write_text(json.dumps(raw))
    assert_equal_model(older, exact)


def converted(quantize: str) -> Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]:
    """What the library makes of a matrix."""
    functions = bitsandbytes.functional

    def convert(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if quantize == "bitsandbytes":
            codes, largest, _ = functions.int8_vectorwise_quant(matrix.half())
            exact = codes.double() * largest.double()[:, None] / 127
        else:
            codes, state = functions.quantize_4bit(matrix, quant_type=quantize[-3:])
            table = functions.get_4bit_type(quantize[-3:], device="cpu").double()
            halves = torch.stack((codes >> 4, codes & 15), -1).long()
            exact = table[halves].view(-1, 64) * state.absmax.double()[:, None]
        return {"weight": matrix}, exact.view(matrix.shape)

    return convert


@pytest.mark.parametrize("quantize", ["bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"])
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_floats_become_the_librarys_codes_while_loading(
    case: str, quantize: str, tmp_path: Path
) -> None:
    base = wide(case, tmp_path, **SIZES)
    pair = quantized(base, tmp_path, converted(quantize), None)
    assert_equal_model(*pair, quantize=quantize)
    if quantize != "bitsandbytes":
        assert_equal_ranks(*pair, quantize=quantize)


def test_ranks_scale_each_row_of_their_shares(tmp_path: Path) -> None:
    """Int8, of the matrices that are cut along their inputs."""
    convert = converted("bitsandbytes")

    def shares(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if matrix.shape[0] != 192:  # the outputs of attention and MLP
            return convert(matrix)
        exact = torch.cat([convert(share)[1] for share in matrix.chunk(2, 1)], 1)
        return {"weight": matrix}, exact

    sizes = {**SIZES, "hidden_size": 192, "head_dim": 16}
    pair = quantized(wide("llama31", tmp_path, **sizes), tmp_path, shares, None)
    assert_equal_ranks(*pair, quantize="bitsandbytes")


@pytest.mark.parametrize("name", ["int8", "nf4-nested"])
def test_modules_that_are_skipped(name: str, tmp_path: Path) -> None:
    """The head counts as skipped only where there is no list; its rows are odd."""
    skipped = ["down_proj", "model.layers.1.self_attn"]
    config = {**FORMATS[name], "llm_int8_skip_modules": skipped}
    path, exact = by_transformers("llama31", tmp_path, **config)
    methods = read_methods(json.loads((path / "config.json").read_text()), torch.float32, HOST)
    assert methods.of("lm_head") is methods.of(UP) is not methods.plain
    assert_equal_model(path, exact)
    assert_equal_ranks(path, exact)


def copied(path: Path, directory: Path) -> Path:
    return Path(shutil.copytree(path, directory / "copy"))


def state(**fields: Any) -> Callable[[Tensor], Tensor]:
    """The quantization state with other fields."""

    def change(stored: Tensor) -> Tensor:
        found = {**json.loads(bytes(stored.tolist())), **fields}
        return torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)

    return change


NF4 = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("int8", drop("SCB"), f"lacks tensors: {UP}.SCB"),
        ("nf4", drop("weight.absmax"), f"lacks tensors: {UP}.weight.absmax"),
        ("nf4", drop(NF4), f"lacks tensors: {UP}.{NF4}"),
        (
            "nf4-nested",
            drop("weight.nested_absmax"),
            f"lacks tensors: {UP}.weight.nested_absmax",
        ),
        (
            "int8",
            put("weight_format", lambda t: t + 1),
            f"tensor {UP}.weight_format is 1, but only int8 matrices stored row by row (0)",
        ),
        (
            "int8",
            put("SCB", lambda t: t[:7].clone()),
            f"{UP}.SCB has shape [7], but config.json makes it [512]",
        ),
        (
            "nf4",
            put("weight", lambda t: t[:100].clone()),
            f"{UP}.weight has shape [100, 1], but config.json makes it [32768]",
        ),
        (
            "nf4",
            put("weight.absmax", lambda t: t[::2].clone()),
            f"{UP}.weight.absmax has shape [512], but config.json makes it [1024]",
        ),
        (
            "nf4-nested",
            put("weight.absmax", lambda t: t.float()),
            f"{UP}.weight.absmax is float32, but its layer takes uint8",
        ),
        (
            "nf4",
            put(NF4, state(blocksize=128)),
            f"{NF4}: blocksize 128 is not supported; supported: 64",
        ),
        (
            "nf4",
            put(NF4, state(quant_type="fp4")),
            f"{NF4}: quant_type 'fp4' is not supported; supported: 'nf4'",
        ),
        ("nf4", put(NF4, state(nested_offset=1.0)), "config.json has bnb_4bit_use_double_quant"),
        ("nf4", put(NF4, lambda t: t[:20].clone()), f"{NF4} does not hold a JSON object"),
        (
            "nf4",
            put("weight.quant_map", lambda t: t.flip(0).clone()),
            f"{UP}.weight.quant_map does not have the 16 values of nf4",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    made: Made, name: str, change: Any, text: str, tmp_path: Path
) -> None:
    path = copied(made("llama31", name)[0], tmp_path)
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "load_in_4bit or load_in_8bit must be true, and one of them alone"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "one of them alone"),
        ({"load_in_4bit": 1}, "load_in_4bit 1 is not supported"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "quant_storage 'bfloat16'"),
        ({"load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "has_fp16_weight True"),
        ({"load_in_8bit": True, "llm_int8_skip_modules": "x"}, "skip_modules must be a list"),
        ({"load_in_8bit": True, "bnb_2bit": True}, "bnb_2bit True is not supported"),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], text: str) -> None:
    raw = {"quantization_config": {"quant_method": "bitsandbytes", **config}}
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods(raw, torch.float32, HOST)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_shares_that_cut_blocks_are_refused(kind: str) -> None:
    with pytest.raises(BadModel, match=r"shares scales among 64 numbers.* has 96"):
        FourBit(Unquantized(torch.bfloat16, HOST), kind).allocate(64, 96)


@pytest.mark.parametrize("make", [Int8, lambda plain: FourBit(plain, "nf4")])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    found = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "bitsandbytes":
            raise ImportError("No module named 'bitsandbytes'")
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadSetting, match=r"pip install 'penstock\[bitsandbytes\]'"):
        make(Unquantized(torch.float32, HOST))


def test_scales_keep_their_precision() -> None:
    assert Int8(Unquantized(torch.bfloat16, HOST)).scale_dtype == torch.float32
