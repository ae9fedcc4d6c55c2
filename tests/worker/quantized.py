"""Quantized checkpoints of tests, and what a model that reads them must compute."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from checkpoints import CASES, generate, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker
from penstock.config import read_config
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import read_methods
from ranks import LENGTH, Threads, prefilled
from safetensors.torch import load_file, save_file
from torch import Tensor

MLPS = r"(mlp|block_sparse_moe|feed_forward)(\.(experts\.\d+|shared_experts?))?"
MIXTRAL = r"block_sparse_moe\.experts\.\d+\.w[123]"
GATE = r"self_attn\.output_gate"
INDEXER = r"self_attn\.indexer\.(w(q_b|k)|index_qk_proj)"
DELTA_NET = r"linear_attn\.(in_proj_(qkv|z)|out_proj)"
DEEPSEEK_V4 = r"attn\.(w[qo]_[ab]|wkv|indexer\.wq_b)|ffn\.(experts\.\d+|shared_experts)\.w[123]"
PROJECTIONS = rf"(self_attn|mamba|mixer|{MLPS})\.(\w+_proj(_with_mqa)?|linear_gate)"
ZAMBA = r"linear|(mamba_decoder\.mamba|shared_transf(ormer)?\.(self_attn|feed_forward))\.\w+_proj"
GRIFFIN = r"temporal_block\.([qkvo]_proj|linear_(x|y|out))|mlp_block\.\w+_proj"
LAYERS = r"((language_model\.)?model(\.language_model)?|backbone)\.layers\.\d+"
NAMES = "|".join((PROJECTIONS, MIXTRAL, GATE, INDEXER, DELTA_NET, DEEPSEEK_V4, ZAMBA, GRIFFIN))
MATRICES = rf"{LAYERS}\.({NAMES})|lm_head"
UP = "model.layers.0.mlp.up_proj"
HOST = torch.device("cpu")
# Two ranks have inputs in whole groups of 128.
WIDE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
Quantize = Callable[[Tensor], tuple[Mapping[str, Tensor], Tensor]]
"""From a matrix to what a checkpoint stores in its module, by suffix, and what that stands for."""


def quantized(
    path: Path,
    directory: Path,
    quantize: Quantize,
    config: Mapping[str, Any] | None,
    kept: str = "lm_head",
) -> tuple[Path, Path]:
    """The checkpoint with the matrices quantized whose modules do not match `kept`, and another of
    what they stand for, in float64."""
    stored: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module == name or not re.fullmatch(MATRICES, module) or re.search(kept, module):
            stored[name] = tensor
            exact[name] = tensor.double() if tensor.is_floating_point() else tensor
            continue
        found, exact[name] = quantize(tensor)
        stored |= {f"{module}.{suffix}": part for suffix, part in found.items()}
    made = directory / "quantized", directory / "exact"
    raw = json.loads((path / "config.json").read_text())
    for folder, tensors, extra in (
        (made[0], stored, {} if config is None else {"quantization_config": config}),
        (made[1], exact, {"dtype": "float64"}),
    ):
        folder.mkdir()
        # Contiguous and apart: safetensors stores no views.
        whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**raw, **extra}))
    return made


def wide(case: str, directory: Path, **sizes: int) -> Path:
    """The case's checkpoint with more inputs of its second matrix, or of those of `sizes`."""
    return write(directory / "wide", **{**CASES[case], "intermediate_size": 128, **sizes})


def drop(suffix: str) -> Callable[[dict[str, Tensor]], object]:
    """A change of a checkpoint: one tensor of UP is missing."""
    return lambda tensors: tensors.pop(f"{UP}.{suffix}")


def put(suffix: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    """A change of a checkpoint: one tensor of UP is another."""
    name = f"{UP}.{suffix}"
    return lambda tensors: tensors.update({name: change(tensors[name])})


def changed(path: Path, change: Callable[[dict[str, Tensor]], object], **config: Any) -> Path:
    """The checkpoint with its tensors changed in place, and fields of quantization_config set."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    raw = json.loads((path / "config.json").read_text())
    raw["quantization_config"] |= config
    (path / "config.json").write_text(json.dumps(raw))
    return path


def error_of_quantizing(path: Path, quantize: str) -> float:
    """By how much logits change where a worker quantizes the floats of a checkpoint, in the mean,
    as a share of their mean magnitude."""
    raw = read_config(path)
    cls: Any = family(raw)
    found = []
    for name in ("", quantize):
        with torch.inference_mode():
            methods = read_methods(raw, torch.float64, HOST, name)
            found.append(prefilled(path, cls, Group(), methods))
    return float((found[0] - found[1]).abs().mean() / found[0].abs().mean())


def assert_equal_model(
    path: Path, exact: Path | Any, tolerance: float = 2e-4, **settings: Any
) -> None:
    """A worker's logits and greedy tokens are those of transformers on the exact matrices."""
    ids, worker = prompt(90), LocalWorker()
    driver = Driver([worker], worker.load(path, **{"dtype": "float64", **settings}))
    logits, sequence = worker.record_logits(), greedy(ids, 8)
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    model = reference(exact, torch.float64) if isinstance(exact, Path) else exact
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = model(tokens).logits[0, len(ids) - 1 : -1].double()
    torch.testing.assert_close(torch.cat(logits).cpu().double(), theirs, rtol=0, atol=tolerance)
    assert sequence.tokens == generate(model, ids, 8)


def assert_equal_ranks(
    path: Path, exact: Path | Any, tolerance: float = 2e-4, quantize: str = ""
) -> None:
    """Each of two ranks has the logits of transformers, and so of one rank."""
    raw = read_config(path)
    cls: Any = family(raw)
    model = reference(exact, torch.float64) if isinstance(exact, Path) else exact
    with torch.inference_mode():
        expected = model(torch.tensor([prompt(LENGTH)])).logits[0, -1:].double()

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        methods = read_methods(raw, torch.float64, HOST, quantize)
        return prefilled(path, cls, group, methods)

    for found in Threads(2).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
