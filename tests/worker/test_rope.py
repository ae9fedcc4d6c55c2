"""Tables of rotary positions equal those of transformers to the last bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from penstock.config import Fields, RopeSpec, read_rope
from penstock.config.rope import yarn_positions
from penstock.layers import rope_order, rope_table
from penstock.models import native, read_specification
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
    init = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    frequencies, factor = init(config, torch.device("cpu"), seq_len=POSITIONS)
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


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_yarn_makes_the_context_longer(name: str) -> None:
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    raw = {"max_position_embeddings": 128, name: rope}
    assert yarn_positions(read_rope(Fields(raw))) == 256
    del rope["original_max_position_embeddings"]
    assert yarn_positions(read_rope(Fields(raw))) == 512
    rope["type"] = "linear"
    assert yarn_positions(read_rope(Fields(raw))) == 0
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64,
        "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96,
        "vocab_size": 96, "max_position_embeddings": 64, "num_key_value_heads": 2,
    }  # fmt: skip
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = native(config)
    assert model is not None
    assert read_specification(model, {**config, name: rope}).max_positions == 256
    assert read_specification(model, config).max_positions == 64


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


@pytest.mark.parametrize("original", [POSITIONS - 1, POSITIONS, 128])
@pytest.mark.parametrize("given", [{}, {"factor": 4.0}, {"factor": 0.5}, {"attention_factor": 1.3}])
def test_longrope(original: int, given: dict[str, float]) -> None:
    """The long factors from one position beyond the original length on."""
    generator = torch.Generator().manual_seed(original)
    factors = (1 + torch.rand(2, 32, generator=generator) * 9).tolist()
    compared(
        64, rope_type="longrope", rope_theta=10000.0, short_factor=factors[0],
        long_factor=factors[1], original_max_position_embeddings=original, **given,
    )  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_reordered_heads_have_the_products_of_the_pairs(
    fraction: float, interleaved: bool, backwards: bool
) -> None:
    """Halves of a reordered head rotate as the pairs of a head's leading dimensions would."""
    head_dim, rope = 24, RopeSpec("default", 100.0, {}, fraction, interleaved, backwards)
    dims, order = rope.dims(head_dim), rope_order(rope, head_dim) or list(range(head_dim))
    assert sorted(order) == list(range(head_dim))
    q, k = torch.randn(2, POSITIONS, head_dim, dtype=torch.float64)

    def pairs(x: torch.Tensor) -> torch.Tensor:
        """Each pair is a complex number, turned by its angle."""
        parts = (-1, 2) if interleaved else (2, -1)
        first, second = x[:, :dims].unflatten(1, parts).unbind(2 if interleaved else 1)
        steps = torch.arange(0, dims, 2, dtype=torch.float64) / dims
        angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64), 100.0**-steps)
        angles = -angles if backwards else angles
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag, x[:, dims:]), 1)

    def halves(x: torch.Tensor) -> torch.Tensor:
        """As the kernels rotate."""
        cos, sin = rope_table(rope, head_dim, POSITIONS).double().chunk(2, 1)
        a, b = x[:, order].chunk(2, 1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), 1)

    torch.testing.assert_close(
        halves(q) @ halves(k).t(), pairs(q) @ pairs(k).t(), rtol=0, atol=1e-4
    )
