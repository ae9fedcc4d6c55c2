"""What ZAYA1 has and no other family: tokens that skip experts, long convolutions, two halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker
from penstock.cache import KvShape
from penstock.config import AttentionSpec, CcaSpec, read_config
from penstock.faults import BadSetting
from penstock.models import family, read_specification
from penstock.parallel import Group
from quantized import error_of_quantizing
from ranks import assert_ranks_agree, prefilled
from safetensors.torch import load_file, save_file
from test_dense_families import PLAIN, run

Checkpoints = Callable[[str], Path]
WEIGHTS = "model.safetensors"
# Two ranks have inputs in whole groups of 128.
WIDE = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 64, "vocab_size": 512}
WIDE |= {"initializer_range": 0.08}


def theirs(model: Any, ids: list[int], tokens: list[int]) -> torch.Tensor:
    """The logits of a model of transformers for these tokens after a prompt."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids + tokens])).logits
    return logits[0, len(ids) - 1 : -1].double()


def test_tokens_may_skip_the_experts(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """The bias of the choice to skip is large enough that some do. transformers
    replaces the stored one by -1 when it has loaded a model."""
    path, ids = checkpoint("zaya"), prompt(90)
    tensors = load_file(path / WEIGHTS)
    biases = [tensor for name, tensor in tensors.items() if name.endswith("balancing_biases")]
    for tensor in biases:
        tensor[-1] = 0.3
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    (tmp_path / "config.json").symlink_to(path / "config.json")
    model, skipped = reference(tmp_path, torch.float64), []
    for layer in model.model.layers:
        layer.mlp.gate.balancing_biases[-1] = 0.3
        layer.mlp.gate.register_forward_hook(
            lambda _module, _inputs, out: skipped.append((out[1] == 0).double().mean().item())
        )
    sequence = greedy(ids, 8)
    logits = run(tmp_path, sequence)
    expected = theirs(model, ids, sequence.tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-4)
    assert len(skipped) == len(biases) == 4 and any(0.05 < share < 0.95 for share in skipped)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_chunks_shorter_than_convolutions(checkpoint: Checkpoints, chunk: int) -> None:
    """The convolutions together read six tokens."""
    path, ids = checkpoint("zaya-biases"), prompt(40)
    worker = LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64"))
    logits, sequence = worker.record_logits(), greedy(ids, 8)
    driver.enter(sequence)
    driver.finish([sequence], chunk=chunk)
    driver.stream.close()
    expected = theirs(reference(path, torch.float64), ids, sequence.tokens)
    torch.testing.assert_close(torch.cat(logits), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("case", "ranks", "shares_experts"),
    [("zaya", 2, True), ("zaya", 4, False), ("zaya", 8, True), ("zaya-biases", 2, False)],
)
def test_ranks(checkpoint: Checkpoints, case: str, ranks: int, shares_experts: bool) -> None:
    """With as many KV heads, more, and several times as many; of one KV head, values are whole."""
    path = checkpoint(case)
    assert_ranks_agree(path, PLAIN, ranks, expert_parallel=shares_experts)


def test_an_odd_number_of_ranks_cannot_share_two_halves(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3}
    path = write(tmp_path, **{**CASES["zaya"], **heads})
    cls: Any = family(read_config(path))
    with pytest.raises(BadSetting, match="cannot be cut in 3 parts together; set --tp to 1"):
        prefilled(path, cls, Group(0, 3), PLAIN)


@pytest.mark.parametrize(("ranks", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_what_layers_keep(ranks: int, heads: int) -> None:
    """Each rank has its KV heads, and all four queries of each."""
    raw = {"architectures": ["ZayaForCausalLM"], **SHAPE, **CASES["zaya"]}
    layers = [layer.attention for layer in read_specification(family(raw), raw).layers]
    assert len(layers) == 8
    for states, attention, window in zip(layers[::2], layers[1::2], (0, 24, 24, 0), strict=True):
        assert isinstance(states, CcaSpec) and isinstance(attention, AttentionSpec)
        assert KvShape.of(attention, ranks) == KvShape(window, heads, 16)
        assert states.state(ranks).channels == heads * (2 * 5 + 1) * 16


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_it_is_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal."""
    path = write(tmp_path / "model", **{**CASES["zaya"], **WIDE})
    assert 1e-3 < error_of_quantizing(path, quantize) < most
