"""What is special about checkpoints of Mamba, beside what test_dense_families.py has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import prompt
from driver import greedy
from safetensors.torch import load_file, save_file
from test_dense_families import changed, run

Checkpoints = Callable[[str], Path]


@pytest.mark.parametrize("case", ["mamba", "mamba2"])
def test_older_name_of_the_embedding(checkpoint: Checkpoints, case: str, tmp_path: Path) -> None:
    """Files of Mamba's own library have it."""
    path = checkpoint(case)
    tensors = load_file(path / "model.safetensors")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(path / "config.json")
    found = run(tmp_path, greedy(prompt(20), 4))
    assert torch.equal(found, run(path, greedy(prompt(20), 4)))


def test_fields_of_training_change_nothing(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """transformers divides loaded weights where the first one is set."""
    path = checkpoint("falcon_mamba")
    fields = {"rescale_prenorm_residual": True, "time_step_scale": 2.0, "time_step_floor": 0.5}
    found = run(changed(path, tmp_path, **fields), greedy(prompt(20), 4))
    assert torch.equal(found, run(path, greedy(prompt(20), 4)))
