"""The seam of weight formats, with a format of these tests: int8 and a scale per output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker, prompt, reference
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build, Head, Linear
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import (
    FORMATS,
    Methods,
    Plain,
    Unquantized,
    Weights,
    WeightTensor,
    kept_modules,
)
from ranks import LENGTH, Threads, prefilled
from safetensors.torch import load_file, save_file
from torch import Tensor

PARTS = r"(self_attn|mlp)\.\w+_proj\.weight|lm_head\.weight"
HOST = torch.device("cpu")


class Int8:
    """w = weight * weight_scale, row by row. It offers no fusion, and no tape holds it."""

    recordable = False

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        weight = torch.empty(outputs, inputs, dtype=torch.int8)
        scale = torch.empty(outputs, dtype=torch.float32)
        return {"weight": WeightTensor(weight, 0, 1), "weight_scale": WeightTensor(scale, 0, None)}

    def finish(self, weights: Weights) -> Weights:
        return weights

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        out = (x @ weights["weight"].to(x.dtype).t()) * weights["weight_scale"].to(x.dtype)
        return out if bias is None else out + bias

    def dequantize(self, weights: Weights) -> Tensor:
        return weights["weight"].double() * weights["weight_scale"].double()[:, None]


def read_int8(config: Mapping[str, Any], plain: Plain) -> Methods:
    return Methods(plain, Int8(), tuple(kept_modules(config)))


@pytest.fixture(autouse=True)
def int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "int8_per_output", read_int8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def quantized(path: Path, directory: Path, kept: list[str]) -> tuple[Path, Path]:
    """The checkpoint in int8, without its `kept` modules; and what it stands for, in float64."""
    stored, exact = {}, {}
    for name, tensor in load_file(path / "model.safetensors").items():
        module = f".{name.removesuffix('.weight')}."
        if not re.search(PARTS, name) or any(f".{part}." in module for part in kept):
            stored[name], exact[name] = tensor, tensor.double()
            continue
        scale = tensor.abs().amax(1) / 127
        whole = (tensor / scale[:, None]).round()
        stored[name], stored[f"{name}_scale"] = whole.to(torch.int8), scale
        exact[name] = whole.double() * scale.double()[:, None]
    raw = json.loads((path / "config.json").read_text())
    config = {"quant_method": "int8_per_output", "modules_to_not_convert": kept}
    made = directory / "quantized", directory / "exact"
    for folder, tensors, extra in (
        (made[0], stored, {"quantization_config": config}),
        (made[1], exact, {"dtype": "float64"}),
    ):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**raw, **extra}))
    return made


KEPT = {
    "llama2": ["mlp", "model.layers.1.self_attn"],  # the head is in int8
    "llama-biases": ["lm_head", "o_proj"],
    "qwen3": [],
    "phi3-longrope": ["down_proj"],  # scales of fused matrices, reordered with their rows
}


@pytest.mark.parametrize("case", KEPT)
def test_a_quantized_model_computes_what_its_weights_stand_for(
    checkpoint: Callable[[str], Path], case: str, tmp_path: Path
) -> None:
    path, exact = quantized(checkpoint(case), tmp_path, KEPT[case])
    ids, worker = prompt(90), LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64"))
    logits, sequence = worker.record_logits(), greedy(ids, 8)
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = reference(exact, torch.float64)(tokens).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(logits), theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("case", KEPT)
def test_ranks_share_weights_and_scales(
    checkpoint: Callable[[str], Path], case: str, tmp_path: Path
) -> None:
    """Also of a head whose rows the ranks cannot share equally."""
    path, exact = quantized(checkpoint(case), tmp_path, KEPT[case])
    raw = read_config(path)
    cls: Any = family(raw)
    methods = read_int8(raw["quantization_config"], Unquantized(torch.float64, HOST))

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        return prefilled(path, cls, group, methods)

    with torch.inference_mode():
        ids = torch.tensor([prompt(LENGTH)])
        expected = reference(exact, torch.float64)(ids).logits[0, -1:]
    for found in Threads(2).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def test_the_path_in_the_checkpoint_chooses_the_method(checkpoint: Callable[[str], Path]) -> None:
    raw = read_config(checkpoint("llama2"))
    kept = ["mlp.down_proj", "model.layers.1", "lm_head"]
    config = {"modules_to_not_convert": kept}
    methods = read_int8(config, Unquantized(torch.float32, HOST))
    cls: Any = family(raw)
    model = cls(cls.read_config(raw), Build(torch.float32, HOST, Group(), methods, 8))
    found = {
        path: isinstance(layer.method, Int8)
        for path, layer in model.walk()
        if isinstance(layer, Linear | Head)
    }
    first = {"attention.qkv": True, "attention.out": True, "mlp.gate_up": True, "mlp.down": False}
    expected = {"head": False}
    for block in range(3):
        expected |= {f"blocks.{block}.{p}": block != 1 and int8 for p, int8 in first.items()}
    assert found == expected


def test_a_tied_head_stays_plain(checkpoint: Callable[[str], Path]) -> None:
    raw = read_config(checkpoint("llama3-tied"))
    methods = read_int8({}, Unquantized(torch.float32, HOST))
    cls: Any = family(raw)
    model = cls(cls.read_config(raw), Build(torch.float32, HOST, Group(), methods, 8))
    assert model.head.method is methods.plain


def test_parts_of_one_matrix_must_have_one_format(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, _ = quantized(checkpoint("llama2"), tmp_path, ["q_proj"])
    with pytest.raises(Refused, match=r"layers\.0\.self_attn\.q_proj, .*different weight formats"):
        LocalWorker().load(path)


def test_no_tape_where_a_method_cannot_be_recorded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Plain weights alone are recorded on a CPU with kernels."""
    plain, worker = LocalWorker(), LocalWorker()
    plain.load(checkpoint("llama2"), dtype="float32")
    worker.load(quantized(checkpoint("llama2"), tmp_path, ["mlp"])[0], dtype="float32")
    assert worker.runner.graphs is None
    assert (
        plain.runner.graphs is not None or not plain.runner.rank_model.model.head.method.recordable
    )


def test_floats_do_not_fit_a_quantized_layer(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, _ = quantized(checkpoint("llama2"), tmp_path, [])
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].float()}, path / "model.safetensors")
    with pytest.raises(Refused, match=rf"{re.escape(name)} is float32, but its layer takes int8"):
        LocalWorker().load(path)


@pytest.mark.parametrize("kept", ["mlp", [1]])
def test_lists_of_modules_are_checked(kept: Any) -> None:
    with pytest.raises(BadModel, match="modules_to_not_convert must be a list of modules"):
        read_int8({"modules_to_not_convert": kept}, Unquantized(torch.float32, HOST))
