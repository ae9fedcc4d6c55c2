"""Checkpoints of quantized weights, and the floats that they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from checkpoints import prompt, reference
from driver import Driver, greedy
from local import LocalWorker
from penstock.config import read_config
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import read_methods
from ranks import LENGTH, Threads, prefilled
from safetensors.torch import load_file, save_file
from torch import Tensor

LINEAR = re.compile(r"(.*\.(?:self_attn|mlp)\.\w+_proj|lm_head)\.weight")
HOST = torch.device("cpu")
# Two ranks then have inputs in whole groups of 128.
WIDE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}


class Stored(NamedTuple):
    """A matrix [outputs, inputs] in a format."""

    tensors: Mapping[str, Tensor]  # by suffix of the module's name
    exact: Tensor  # float64


class Checkpoints(NamedTuple):
    """A quantized checkpoint, and a float64 checkpoint of the same numbers."""

    stored: Path
    exact: Path


def rewritten(
    path: Path,
    directory: Path,
    convert: Callable[[str, Tensor], Stored | None],
    config: Mapping[str, Any] | None,
) -> Checkpoints:
    """A checkpoint whose linear layers `convert` stores; None leaves one as it is."""
    stored: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        module = LINEAR.fullmatch(name)
        made = module and convert(module[1], tensor)
        if not made:
            stored[name], exact[name] = tensor, tensor.double()
            continue
        stored |= {f"{module[1]}.{suffix}": t for suffix, t in made.tensors.items()}
        exact[name] = made.exact
    extra = {} if config is None else {"quantization_config": config}
    raw = json.loads((path / "config.json").read_text())
    found = Checkpoints(directory / "stored", directory / "exact")
    for folder, tensors, fields in (
        (found.stored, stored, extra),
        (found.exact, exact, {"dtype": "float64"}),
    ):
        folder.mkdir(parents=True)
        whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**raw, **fields}))
    return found


def check_tokens(made: Checkpoints, **settings: Any) -> None:
    """A worker's logits and greedy tokens are those of transformers on the exact weights."""
    ids, worker = prompt(90), LocalWorker()
    driver = Driver([worker], worker.load(made.stored, dtype="float64", **settings))
    logits, sequence = worker.record_logits(), greedy(ids, 8)
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = reference(made.exact, torch.float64)(tokens).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(logits), theirs, rtol=0, atol=2e-4)
    assert theirs.argmax(-1).tolist() == sequence.tokens


def check_ranks(made: Checkpoints, quantize: str = "", ranks: int = 2) -> None:
    """The logits of several ranks are those of transformers on the exact weights."""
    raw = read_config(made.stored)
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float64, HOST, quantize)

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        return prefilled(made.stored, cls, group, methods)

    with torch.inference_mode():
        ids = torch.tensor([prompt(LENGTH)])
        expected = reference(made.exact, torch.float64)(ids).logits[0, -1:]
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
