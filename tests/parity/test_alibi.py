"""ALiBi where transformers is no reference as it is: slopes, Baichuan 13B, MPT's options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import generate, prompt, reference, write
from driver import greedy
from local import every_run
from penstock.config import alibi_slopes
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from ranks import Threads, prefilled
from safetensors.torch import load_file, save_file
from test_dense_families import changed, run
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import MptModel, build_mpt_alibi_tensor

PLAIN = Methods(Unquantized(torch.float64, torch.device("cpu")))
FIRST, SECOND = "BaiChuanForCausalLM", "BaichuanForCausalLM"
# Architecture, words, whether positions are ALiBi's, and whether rows of the head have length 1.
BAICHUAN: dict[str, tuple[str, int, bool, bool]] = {
    "7b": (FIRST, 501, False, False),
    "13b": (SECOND, 64_000, True, False),
    "2-7b": (SECOND, 501, False, True),
    "2-13b": (SECOND, 501, True, True),
}


@pytest.mark.parametrize("heads", [*range(1, 34), 40, 71, 112, 128])
def test_slopes_are_those_of_bloom_and_mpt(heads: int) -> None:
    two = torch.ones(1, 2, dtype=torch.long)
    bloom = build_alibi_tensor(two, heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom, rtol=1e-5, atol=0)
    for most in (8, 16):
        mpt = -build_mpt_alibi_tensor(heads, 2, most)[:, 0, 0]
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads, most)), mpt, rtol=1e-5, atol=0)


class Oracle:
    """A Llama of transformers, perhaps with ALiBi in the place of RoPE."""

    def __init__(self, path: Path, alibi: bool) -> None:
        self.model, self.alibi = reference(path, torch.float64), alibi
        if alibi:
            self.model.model.rotary_emb.forward = _still

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Tensor:
        """Of all positions."""
        tokens, length = torch.tensor([ids]), len(ids)
        if not self.alibi:
            return self.model(tokens).logits[0]
        heads = self.model.config.num_attention_heads
        one = build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float64)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = one.expand(heads, length, length).masked_fill(future, -torch.inf)
        return self.model(tokens, attention_mask=mask[None], use_cache=False).logits[0]

    def tokens(self, ids: list[int], count: int) -> list[int]:
        """Greedy ones."""
        found = list(ids)
        for _ in range(count):
            found.append(int(self.logits(found)[-1].argmax()))
        return found[len(ids) :]


def _still(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    cos = torch.ones(1, position_ids.shape[1], 16, dtype=x.dtype)
    return cos, torch.zeros_like(cos)


@pytest.fixture(scope="module")
def baichuan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Oracle]]:
    """Makes a checkpoint of a kind, and its oracle."""
    return partial(_baichuan, tmp_path_factory.mktemp("baichuan"))


def _baichuan(directory: Path, kind: str) -> tuple[Path, Oracle]:
    architecture, vocab, alibi, unit_rows = BAICHUAN[kind]
    llama = write(directory / f"llama{vocab}", model_type="llama", num_key_value_heads=4,
                  vocab_size=vocab)  # fmt: skip
    tensors = load_file(llama / "model.safetensors")
    found = {name: one for name, one in tensors.items() if not re.search("[qkv]_proj", name)}
    for layer in range(3):
        attention = f"model.layers.{layer}.self_attn."
        parts = [tensors[f"{attention}{part}_proj.weight"] for part in "qkv"]
        found[f"{attention}W_pack.weight"] = torch.cat(parts)
    path, exact = directory / kind, directory / f"{kind}-exact"
    for folder in (path, exact):
        folder.mkdir(exist_ok=True)
    save_file(found, path / "model.safetensors")
    config = json.loads((llama / "config.json").read_text())
    (exact / "config.json").write_text(json.dumps(config))
    if unit_rows:
        head = tensors["lm_head.weight"].double()
        tensors["lm_head.weight"] = head / head.square().sum(1, keepdim=True).sqrt()
    save_file(tensors, exact / "model.safetensors", metadata={"format": "pt"})
    config |= {"architectures": [architecture], "model_type": "baichuan", "z_loss_weight": 0}
    if alibi:
        config |= {"model_max_length": config.pop("max_position_embeddings")}
    (path / "config.json").write_text(json.dumps(config))
    return path, Oracle(exact, alibi)


@pytest.mark.parametrize("kind", BAICHUAN)
def test_baichuan_is_a_llama_with_one_matrix(baichuan: Any, kind: str) -> None:
    """Baichuan 2 stores a head of any rows, and multiplies by their directions."""
    path, oracle = baichuan(kind)
    ids = prompt(90)
    runs = every_run(path, ids)
    theirs = oracle.logits(ids + runs.tokens())[len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(runs.logits).double(), theirs, rtol=0, atol=2e-4)
    assert runs.tokens() == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", BAICHUAN)
def test_ranks_of_baichuan_compute_what_one_does(baichuan: Any, kind: str, ranks: int) -> None:
    path, _ = baichuan(kind)
    cls: Any = family(json.loads((path / "config.json").read_text()))
    alone = prefilled(path, cls, Group(), PLAIN)
    for part in Threads(ranks).run(
        torch.inference_mode()(lambda group: prefilled(path, cls, group, PLAIN))
    ):
        torch.testing.assert_close(part, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-4), ("bfloat16", 1.0)])
def test_dtypes_of_baichuan_13b(baichuan: Any, dtype: str, tolerance: float) -> None:
    path, oracle = baichuan("13b")
    logits = run(path, greedy(prompt(90), 1), dtype)
    assert (logits[0].double() - oracle.logits(prompt(90))[-1]).abs().max() < tolerance


def test_the_steepest_slope_of_mpt(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers does not read alibi_bias_max, which MPT's own code does. The architecture has
    the name of that code."""
    path = changed(
        checkpoint("mpt"), tmp_path, architectures=["MPTForCausalLM"],
        attn_config={"alibi_bias_max": 16, "attn_impl": "torch"},
    )  # fmt: skip
    sequence = greedy(prompt(90), 24)
    run(path, sequence)
    steep = partial(build_mpt_alibi_tensor, alibi_bias_max=16)
    plain = generate(reference(path, torch.float64), prompt(90), 24)
    monkeypatch.setattr(
        MptModel, "build_mpt_alibi_tensor", lambda _, *args, **named: steep(*args, **named)
    )
    assert sequence.tokens == generate(reference(path, torch.float64), prompt(90), 24) != plain
