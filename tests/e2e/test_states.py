"""A model with recurrent layers behind the server: tokens equal those of `transformers`.

The scheduler of the router and the workers agree on the blocks of states here: prompts share a
beginning, are forked, begin with a checkpoint, and are preempted where memory is short.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from random_models import (
    BROOK,
    Variant,
    answers,
    check_tokens,
    write_random,
)
from serving import Server, metric_value
from transformers import AutoTokenizer, Qwen3_5TextConfig

VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "16-token chunks": (["--max-step-tokens", "16"], "penstock_prefix_hit_tokens"),
    "preempted": (["--kv-memory", "2MiB", "--max-step-tokens", "256"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
    "no prefix cache": (["--no-prefix-cache"], None),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 with brook's tokenizer; one layer of four has softmax attention."""
    path = tmp_path_factory.mktemp("qwen")
    config = Qwen3_5TextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        max_position_embeddings=2048,
    )
    return write_random(path, config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])


def test_a_common_beginning_is_found(tmp_path: Path, model: Path) -> None:
    """Of prompts with different ends: the second one leaves a checkpoint where they part."""
    dice = torch.Generator().manual_seed(5)
    shared = torch.randint(2, 500, (203,), generator=dice).tolist()
    ends = [torch.randint(2, 500, (40,), generator=dice).tolist() for _ in range(3)]
    found = []
    with Server(tmp_path / "serve.log", ["--model", str(model), "--max-len", "640"]) as server:
        for end in ends:
            asyncio.run(answers(server, [shared + end]))
            found.append(metric_value(server, "penstock_prefix_hit_tokens"))
    assert found == [0, 0, 192]
