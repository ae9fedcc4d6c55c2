"""Tables of rotary positions equal those of transformers to the last bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from penstock.config import Fields, read_rope
from penstock.layers import rope_table
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

POSITIONS = 70


def compared(head_dim: int, **rope: Any) -> None:
    """`rope` as in config.json."""
    raw = {"max_position_embeddings": 256, "rope_parameters": rope}
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
        max_position_embeddings=256, rope_parameters=dict(rope),
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float32), frequencies)
    table = rope_table(read_rope(Fields(raw)), head_dim, POSITIONS)
    assert table.dtype == torch.float32 and table.shape == (POSITIONS, head_dim)
    assert torch.equal(table[:, : head_dim // 2], angles.cos() * factor), rope
    assert torch.equal(table[:, head_dim // 2 :], angles.sin() * factor), rope


@pytest.mark.parametrize("theta", [3.0, 10000.0, 1e6])
@pytest.mark.parametrize("head_dim", [8, 64])
def test_yarn(theta: float, head_dim: int) -> None:
    """Ramps that are cut off at either end, that are no range at all, and all ways to a scale."""
    lengths = (16, 256, 4096)
    for factor, original, truncate in itertools.product((0.5, 1, 4), lengths, (True, False)):
        for given in (
            {},
            {"beta_fast": 16.0, "beta_slow": 2.0},
            {"beta_fast": 4.0, "beta_slow": 4.0},
            {"attention_factor": 1.2, "mscale": 0.7, "mscale_all_dim": 1.3},
            {"mscale": 0.7, "mscale_all_dim": 1.3},
            {"mscale": 0.7},
            {"mscale_all_dim": 1.3},
        ):
            compared(
                head_dim, rope_type="yarn", rope_theta=theta, factor=factor, truncate=truncate,
                original_max_position_embeddings=original, **given,
            )  # fmt: skip


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("original", [16, 64, 8192])
@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (0.5, 32.0)])
def test_llama3(head_dim: int, original: int, low: float, high: float) -> None:
    compared(
        head_dim, rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=low,
        high_freq_factor=high, original_max_position_embeddings=original,
    )  # fmt: skip


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_linear(factor: float) -> None:
    compared(64, rope_type="linear", rope_theta=10000.0, factor=factor)
