"""What is special about checkpoints of Zamba2, beside what test_dense_families.py has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import prompt
from driver import greedy
from penstock.config import read_config
from penstock.layers import Build
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from safetensors.torch import load_file, save_file
from test_dense_families import run

Checkpoints = Callable[[str], Path]


@pytest.mark.parametrize("case", ["zamba2", "zamba2-plain"])
def test_weights_may_be_stored_at_each_place(
    checkpoint: Checkpoints, case: str, tmp_path: Path
) -> None:
    path, more = checkpoint(case), {}
    tensors = load_file(path / "model.safetensors")
    copies = {"1": "4", "3": "5"} if case == "zamba2" else {"0": "2"}
    for name, tensor in tensors.items():
        _, _, layer, part = name.split(".", 3) if ".layers." in name else ("",) * 4
        if part.startswith("shared_transformer."):
            more[f"model.layers.{copies[layer]}.{part}"] = tensor.clone()
    assert len(more) > 8
    save_file(tensors | more, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(path / "config.json")
    found = run(tmp_path, greedy(prompt(20), 4))
    assert torch.equal(found, run(path, greedy(prompt(20), 4)))


def test_places_share_memory(checkpoint: Checkpoints) -> None:
    """As many bytes are kept as the checkpoint has."""
    path = checkpoint("zamba2")
    raw = read_config(path)
    cls: Any = family(raw)
    methods = Methods(Unquantized(torch.float32, torch.device("cpu")))
    model = cls(
        read_specification(cls, raw),
        Build(torch.float32, methods.plain.device, Group(), methods, 8),
    )
    stored = load_file(path / "model.safetensors").values()
    assert model.kept_bytes() == sum(tensor.nbytes for tensor in stored)
