"""Ranks that share a model which transformers' own module computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from checkpoints import generate, prompt, reference
from driver import Driver, running
from library_types import raw_configuration, write
from local import LocalWorker, Refused
from penstock.faults import BadModel
from penstock.layers import Cut
from penstock.models.fallback import Fallback
from penstock.models.fallback.interface import PagedLayer, Step
from quantized import WIDE
from together import in_three_ways

LIBRARY = {"model_backend": "transformers", "dtype": "float32"}


def tokens_of(path: Path, ranks: int, quantize: str = "") -> list[list[int]]:
    """As `in_three_ways`, of a group of workers."""
    found: list[list[int]] = []
    for workers, loaded in running(path, ranks, quantize=quantize, **LIBRARY):
        found = in_three_ways(Driver(workers, loaded))
    return found


@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma2", "cohere", "dots1", "qwen3_moe"])
def test_tokens_of_two_ranks_are_those_of_the_library(model_type: str, tmp_path: Path) -> None:
    """Fused queries, keys and values; windows and soft caps; a layer's two parts side by side;
    experts, with shared ones and without."""
    path = write(model_type, tmp_path)
    expected = generate(reference(path, torch.float32), prompt(60), 12)
    assert tokens_of(path, 2) == [expected] * 3


def test_tokens_of_quantized_weights_are_those_of_one_rank(tmp_path: Path) -> None:
    """Two ranks have inputs in whole groups of 128."""
    path = checkpoints.write(tmp_path / "model", **WIDE)
    assert tokens_of(path, 2, "int4") == tokens_of(path, 1, "int4")


@pytest.mark.parametrize(
    ("model_type", "ranks", "text"),
    [
        ("gpt2", 2, "--tp is 2, but ranks cannot share this model: transformers has no plan"),
        ("olmo2", 2, "gives layers.*.self_attn.q_proj the style 'colwise_gather_output'"),
        ("granitemoe", 2, "plan does not share model.layers.0.self_attn"),
        ("mimo_v2_flash", 2, "gives layers.*.self_attn the style 'local_params', which is unknown"),
        ("llama", 4, "num_key_value_heads is 2, which 4 ranks cannot share equally"),
    ],
)
def test_models_that_ranks_cannot_share(
    model_type: str, ranks: int, text: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(write(model_type, tmp_path), world_size=ranks, **LIBRARY)


def test_the_plan_cuts_linear_layers_of_every_block() -> None:
    sharing = Fallback.read_config(raw_configuration("llama")).sharing
    names = {path.rpartition(".")[2]: cut for path, cut in sharing.cuts.items()}
    outputs = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), Cut.OUTPUTS)
    assert names == {**outputs, "o_proj": Cut.INPUTS, "down_proj": Cut.INPUTS}
    assert len(sharing.cuts) == 3 * len(names) and not sharing.refusal


def test_heads_of_a_rank_must_be_its_share() -> None:
    fields: dict[str, Any] = {"scale": 1.0, "window": 0, "softcap": 0.0, "width": 8}
    layer = PagedLayer(0, **fields, heads=(2, 1), cos_sin=torch.empty(0), step=Step())
    q, k = torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 3, 8)
    assert layer(q, k, k, None).shape == (1, 3, 2, 8)
    with pytest.raises(BadModel, match="this rank has 4 query heads and 1 KV heads of layer 0"):
        layer(torch.zeros(1, 4, 3, 8), k, k, None)
