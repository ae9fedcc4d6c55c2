"""What Qwen4-Exp has and no other family: cached index keys, n-grams, checkpoints with images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, generate, prompt, write
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.cache import KvShape
from penstock.config import AttentionSpec, NgramSpec, read_config
from penstock.layers.ngram_hash import NgramHash, padded_rows, table_sizes
from penstock.models import family, read_specification
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from safetensors.torch import load_file, save_file
from test_dense_families import changed, run
from test_experts import FORMATS
from transformers import Qwen4ExpConfig, Qwen4ExpForConditionalGeneration
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

Checkpoints = Callable[[str], Path]
WEIGHTS = "model.safetensors"
# Two ranks have inputs in whole groups of 128. All blocks are chosen: rounding changes no choice.
WIDE = {
    "hidden_size": 256,
    "vocab_size": 512,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "head_dim": 64,
    "indexer_head_dim": 64,
    "indexer_budget": 128,
    "num_experts_per_tok": 8,
    "ple_embed_dim": 64,
    "initializer_range": 0.08,
}


def specification(path: Path) -> Any:
    raw = read_config(path)
    return read_specification(family(raw), raw)


@pytest.mark.parametrize(("ranks", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_a_row_has_value_key_and_index_key(checkpoint: Checkpoints, ranks: int, heads: int) -> None:
    attention = specification(checkpoint("qwen4_exp")).softmax_layers[0]
    assert isinstance(attention, AttentionSpec)
    assert KvShape.of(attention, ranks) == KvShape(0, heads, 32 + 32 + 24, planes=1)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"kv_dtype": "int8"}, "int8 is not supported for multi-head latent attention and for"),
        ({"block_tokens": 6}, "block_tokens is 6, not a multiple of indexer_compress_ratio, 4"),
    ],
)
def test_caches_that_do_not_fit_are_refused(
    checkpoint: Checkpoints, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(Refused, match=error):
        LocalWorker().load(checkpoint("qwen4_exp"), **settings)


@pytest.mark.parametrize("block_tokens", [4, 32])
def test_sizes_of_cache_blocks(checkpoint: Checkpoints, block_tokens: int) -> None:
    """The choice and its tokens do not depend on how many fit a block of the cache."""
    found = []
    for settings in ({}, {"block_tokens": block_tokens}):
        sequence = greedy(prompt(90), 16)
        worker = LocalWorker()
        driver = Driver([worker], worker.load(checkpoint("qwen4_exp"), dtype="float64", **settings))
        driver.enter(sequence)
        driver.finish([sequence], chunk=32)
        driver.stream.close()
        found.append(sequence.tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("layer", [0, 1])
def test_hashes_are_those_of_transformers(layer: int) -> None:
    """Of ids up to the vocabulary's size, with factors whose products have 63 bits."""
    config = Qwen4ExpConfig(text_config={**SHAPE, **CASES["qwen4_exp"]}).text_config
    theirs = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, 0, layer)
    theirs.ngram_embedding = torch.nn.Embedding.from_pretrained(
        torch.arange(theirs.ngram_embedding.num_embeddings, dtype=torch.float64)[:, None]
    )
    spec = NgramSpec(48, 3, 4, 3, 192, 90, 16, 5, 1234, 3, None, layer)  # type: ignore[arg-type]
    assert table_sizes(spec) == theirs.head_vocab_sizes
    assert padded_rows(spec) == theirs.ngram_embedding.num_embeddings
    ids = prompt(64)
    before = [[3, 3], [ids[0] if ids[0] != 3 else 3, 3]]
    for at in range(2, 64):
        one = ids[at - 1]
        before.append([one, 3 if one == 3 else ids[at - 2]])
    rows = torch.tensor([[own, *past] for own, past in zip(ids, before, strict=True)])
    found = NgramHash(spec, config.vocab_size, torch.device("cpu"))(rows)
    assert found.tolist() == theirs(torch.tensor([ids]), None)[0].long().tolist()


def test_text_of_checkpoints_with_images(tmp_path: Path) -> None:
    """Names with a prefix; a vision tower and a layer that predicts further are not loaded."""
    vision = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2}
    vision |= {"out_hidden_size": 64, "patch_size": 4, "num_position_embeddings": 16}
    torch.manual_seed(7)
    text = {**SHAPE, **CASES["qwen4_exp"], "pad_token_id": None}
    whole = Qwen4ExpConfig(text_config=text, vision_config=vision)
    model = Qwen4ExpForConditionalGeneration(whole).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["mtp.fc.weight"] = torch.ones(2, 2)
    save_file(tensors, tmp_path / WEIGHTS)
    sequence = greedy(prompt(90), 16)
    run(tmp_path, sequence, "float32")
    assert sequence.tokens == generate(model, prompt(90), 16)


def test_tables_in_one_part(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Checkpoints say how many tensors a table is stored in."""
    path, tensors = checkpoint("qwen4_exp"), load_file(checkpoint("qwen4_exp") / WEIGHTS)
    parts = sorted(name for name in tensors if ".shard_" in name)
    assert len(parts) == 10
    for table in {name.rpartition("_")[0] for name in parts}:
        own = [tensors.pop(name) for name in parts if name.startswith(table)]
        tensors[table + "_0.weight"] = torch.cat(own)
    whole = changed(path, tmp_path / "whole", split_ngram_parts=1)
    (whole / WEIGHTS).unlink()
    save_file(tensors, whole / WEIGHTS, {"format": "pt"})
    found = []
    for each in (path, whole):
        sequence = greedy(prompt(40), 8)
        run(each, sequence)
        found.append(sequence.tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """Matrices of attention, the indexer and shared experts; streams and n-grams are floats."""
    quantize, config = FORMATS[name]
    path = write(tmp_path / "plain", **{**CASES["qwen4_exp"], **WIDE})
    kept = r"lm_head|\.ple\.|in_proj_[ab]"
    path, exact = quantized(path, tmp_path, quantize, config, kept)
    suffix = {"fp8": "weight_scale_inv", "int4": "qweight"}[name]
    assert f"model.layers.1.self_attn.indexer.index_qk_proj.{suffix}" in load_file(path / WEIGHTS)
    check(path, exact)


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_it_is_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal."""
    path = write(tmp_path / "model", **{**CASES["qwen4_exp"], **WIDE})
    assert 1e-3 < error_of_quantizing(path, quantize) < most
