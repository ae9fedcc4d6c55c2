"""What is special about checkpoints of Zamba and Zamba2, beside what test_dense_families.py has of
them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, prompt, reference, write
from driver import greedy
from penstock.config import read_config
from penstock.faults import BadSetting
from penstock.layers import Build
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from safetensors.torch import load_file, save_file
from test_dense_families import run

Checkpoints = Callable[[str], Path]
# By case, places that may have copies of weights, and those that have them.
COPIES = {
    "zamba": {"4": "2", "7": "2"},
    "zamba-list": {"3": "0"},
    "zamba2": {"4": "1", "5": "3"},
    "zamba2-plain": {"2": "0"},
}


@pytest.mark.parametrize("case", COPIES)
def test_weights_may_be_stored_at_each_place(
    checkpoint: Checkpoints, case: str, tmp_path: Path
) -> None:
    path, more = checkpoint(case), {}
    tensors = load_file(path / "model.safetensors")
    for copy, first in COPIES[case].items():
        own = rf"model\.layers\.{first}\.(shared_transf(ormer)?\..*)"
        matches = ((re.fullmatch(own, name), tensor) for name, tensor in tensors.items())
        more |= {f"model.layers.{copy}.{m[1]}": tensor.clone() for m, tensor in matches if m}
    assert len(more) > 8 - (case == "zamba-list")
    save_file(tensors | more, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(path / "config.json")
    found = run(tmp_path, greedy(prompt(20), 4))
    assert torch.equal(found, run(path, greedy(prompt(20), 4)))


@pytest.mark.parametrize("case", ["zamba", "zamba2"])
def test_places_share_memory(checkpoint: Checkpoints, case: str) -> None:
    """As many bytes are kept as the checkpoint has."""
    path = checkpoint(case)
    raw = read_config(path)
    cls: Any = family(raw)
    methods = Methods(Unquantized(torch.float32, torch.device("cpu")))
    model = cls(
        read_specification(cls, raw),
        Build(torch.float32, methods.plain.device, Group(), methods, 8),
    )
    stored = load_file(path / "model.safetensors").values()
    assert model.kept_bytes() == sum(tensor.nbytes for tensor in stored)


def test_mamba_may_have_one_head(tmp_path: Path) -> None:
    """It has a dimension in the file, too; and x and gates are in turns."""
    path, ids = write(tmp_path, **{**CASES["zamba"], "n_mamba_heads": 1}), prompt(40)
    with torch.inference_mode():
        expected = reference(path, torch.float64)(torch.tensor([ids])).logits[0, -1:]
    torch.testing.assert_close(run(path, greedy(ids, 1)), expected, rtol=0, atol=2e-4)


def test_ranks_share_heads_or_their_channels(checkpoint: Checkpoints) -> None:
    """Mamba has four heads of 48 channels, and three ranks can have equal parts of the channels."""
    path = checkpoint("zamba-list")
    raw = {**read_config(path), "num_attention_heads": 3, "num_key_value_heads": 3}
    cls: Any = family(raw)
    methods = Methods(Unquantized(torch.float32, torch.device("cpu")))
    build = Build(torch.float32, methods.plain.device, Group(1, 3), methods, 8)
    with pytest.raises(BadSetting, match="n_mamba_heads is 4, which 3 ranks cannot share equally"):
        cls(read_specification(cls, raw), build)
