"""What Dots3-Note has and no other family: caches of latents of two sizes, published fields, and
checkpoints with images and audio."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, prompt, reference, write
from driver import greedy
from image_checkpoints import saved
from local import LocalWorker
from penstock.cache import KvShape
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import listed_rows
from penstock.models import family, read_specification
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from safetensors.torch import load_file, save_file
from test_dense_families import changed, run
from test_experts import FORMATS
from test_kv_groups import driver_of
from together import beside_a_longer_prompt
from transformers import Dots3NoteConfig, Dots3NoteForConditionalGeneration

CASE, WEIGHTS = "dots3-note", "model.safetensors"
Checkpoints = Callable[[str], Path]
# Of each attention, in the place of what transformers writes.
PUBLISHED: dict[str, Any] = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "use_dsa": True,
    "moe_layer_freq": [1, 1, 0, 1],
    "first_k_dense_replace": 1,
    "moe_shared_expert_intermediate_size": 24,
    "sliding_window_size": 11,
    "rope_theta": 9000.0,
    "num_nextn_predict_layers": 1,
    **{name: size for name, size in CASES[CASE].items() if name.startswith("swa_")},
}
OWN = ("per_layer_config", "rope_parameters", "mlp_layer_types", "sliding_window")
OWN += ("shared_experts_intermediate_size",)
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 2, "patch_size": 4}
AUDIO = {**VISION, "adapter_input_size": 16, "adapter_out_dim": 64, "downsample_hidden_size": 8}
VISION |= {"mlp_layer_types": ["dense"], "adapter_in_dim": 16, "adapter_out_dim": 64}


def specification(path: Path) -> Any:
    raw = read_config(path)
    return read_specification(family(raw), raw)


def test_groups_of_the_cache(checkpoint: Checkpoints) -> None:
    """Rows of layers with an indexer have its key; those of windows have another size."""
    indexed, sliding, _, _ = specification(checkpoint(CASE)).softmax_layers
    for ranks in (1, 2):
        assert KvShape.of(indexed, ranks) == KvShape(0, 1, 24 + 8 + 20, planes=1)
        assert KvShape.of(sliding, ranks) == KvShape(11, 1, 36 + 6, planes=1)


def test_published_fields(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """They say what transformers' own do."""
    path = checkpoint(CASE)
    other = changed(path, tmp_path, *OWN, **PUBLISHED)
    assert specification(other) == specification(path)


ROPES = {"indexed_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 90.0}}


@pytest.mark.parametrize(
    ("dropped", "fields"),
    [
        (OWN, PUBLISHED),
        ((*OWN, "rope_theta"), {**PUBLISHED, "swa_rope_theta": 70.0, "attention_dropout": 0.1}),
        (("rope_parameters", "rms_norm_eps"), {}),
        ((), {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}),
        ((), {"rope_parameters": ROPES, "sliding_window": None, "norm_topk_prob": False}),
        (("routed_scaling_factor", "index_topk"), {"n_group": 1, "topk_group": 1}),
    ],
)
def test_fields_are_read_as_by_transformers(
    checkpoint: Checkpoints, tmp_path: Path, dropped: tuple[str, ...], fields: dict[str, Any]
) -> None:
    path = changed(checkpoint(CASE), tmp_path, *dropped, **fields)
    ids, sequence = prompt(90), greedy(prompt(90), 8)
    logits = run(path, sequence)
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = reference(path, torch.float64)(tokens).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)


def test_layers_by_default(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Without a list, the first two layers and every fourth have an indexer, or all have."""
    every = dict.fromkeys(("layer_types", "per_layer_config", "mlp_layer_types"))
    fields = {**every, "num_hidden_layers": 7, "moe_layer_freq": 2, "first_k_dense_replace": 2}
    found = specification(changed(checkpoint(CASE), tmp_path / "some", "rope_parameters", **fields))
    assert [bool(window) for window in found.windows] == [False] * 2 + [True] * 3 + [False, True]
    sizes = [getattr(layer.mlp, "experts", 0) for layer in found.layers]
    assert sizes == [0, 0, 8, 0, 8, 0, 8]
    fields["use_sliding_window"] = False
    found = specification(changed(checkpoint(CASE), tmp_path / "all", "rope_parameters", **fields))
    assert all(attention.latent.indexer for attention in found.softmax_layers)


def with_images(path: Path) -> Any:
    """Writes a checkpoint with images and audio; returns the model in float64."""
    text = {**SHAPE, **CASES[CASE]}
    config = Dots3NoteConfig(text_config=text, vision_config=VISION, audio_config=AUDIO)
    return saved(path, Dots3NoteForConditionalGeneration, config)


def as_published(path: Path) -> None:
    """Puts the text's fields to the top, and a layer that predicts further tokens behind the last
    one."""
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw.pop("text_config"), **raw}))
    extra = {"model.layers.4.eh_proj.weight": torch.ones(2, 2), "model.mtp.x": torch.ones(2)}
    save_file(load_file(path / WEIGHTS) | extra, path / WEIGHTS)


def in_a_language_model(path: Path) -> None:
    """Renames the text's tensors."""
    found = load_file(path / WEIGHTS).items()
    save_file({n.replace("model.", "model.language_model."): t for n, t in found}, path / WEIGHTS)


@pytest.mark.parametrize("rewrite", [None, as_published, in_a_language_model])
def test_text_of_checkpoints_with_images(tmp_path: Path, rewrite: Any) -> None:
    model, ids, sequence = with_images(tmp_path), prompt(90), greedy(prompt(90), 24)
    if rewrite is not None:
        rewrite(tmp_path)
    logits = run(tmp_path, sequence)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids + sequence.tokens])).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)
    assert sequence.tokens == theirs.argmax(-1).tolist()


YARN = {"rope_type": "yarn", "rope_theta": 9000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"q_lora_rank": None}, "an indexer without q_lora_rank is not supported"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported, only 4 is"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
        ({"rope_interleave": False}, "rope_interleave False is not supported"),
        ({"rope_parameters": YARN}, "rope_type 'yarn' is not supported, only 'default' is"),
        ({"rope_parameters": {"sliding_attention": {}}}, "have one for indexed_attention, found"),
        ({"layer_types": ["linear_attention"] * 4}, "full_attention, sliding_attention for each"),
        ({"layer_types": ["full_attention"] * 3}, "for each of 4 layers, found"),
        ({"per_layer_config": {"1": {"index_topk": 3}}}, "per_layer_config.1.index_topk is not"),
        ({"per_layer_config": {"1": {"head_dim": 8}}}, "head_dim 8 is not supported, only 20 is"),
        ({"mlp_layer_types": None, "moe_layer_freq": [1, 2]}, "moe_layer_freq must hold 0 or 1"),
        ({"index_head_dim": 4}, "index_head_dim is 4, less than qk_rope_head_dim"),
        ({"n_group": 3}, "8 experts do not form 3 equal groups"),
        ({"sliding_window": 0}, "sliding_window must be a whole number"),
        ({"swa_rope_scaling": YARN}, "swa_rope_scaling {"),
    ],
)
def test_fields_that_are_refused(
    checkpoint: Checkpoints, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    path = changed(checkpoint(CASE), tmp_path, **fields)
    with pytest.raises(BadModel, match=re.escape(text)):
        specification(path)


def test_sequences_in_padded_steps(checkpoint: Checkpoints) -> None:
    """Decodes beside chunks of a longer prompt, one preempted, one forked: each has the tokens that
    it has alone. Free blocks hold NaN, also those that windows have passed."""
    path, worker = checkpoint(CASE), LocalWorker()
    driver = driver_of([worker], worker.load(path, dtype="float64"))  # type: ignore[list-item]
    worker.runner.packer.pad = True
    short, fork, long = beside_a_longer_prompt(driver)
    assert fork.released[0] == 0 and fork.released[1] > 0
    for sequence in (short, fork, long):
        alone = greedy(sequence.prompt, sequence.wanted)
        run(path, alone)
        assert alone.tokens == sequence.tokens


def test_queries_may_need_several_launches(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers with an indexer, and with windows."""
    whole, parts = greedy(prompt(90), 4), greedy(prompt(90), 4)
    expected = run(checkpoint(CASE), whole)
    monkeypatch.setattr(listed_rows, "QUERIES", 7)
    torch.testing.assert_close(run(checkpoint(CASE), parts), expected)
    assert parts.tokens == whole.tokens


# Two ranks have inputs in whole groups of 128. All tokens are chosen: rounding changes no choice.
WIDE = {"hidden_size": 256, "vocab_size": 512, "intermediate_size": 256, "q_lora_rank": 128}
WIDE |= {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 64}
WIDE |= {"swa_q_lora_rank": 128, "swa_kv_lora_rank": 256, "swa_qk_nope_head_dim": 32}
WIDE |= {"swa_head_dim": 64, "swa_v_head_dim": 32, "index_head_dim": 128, "index_topk": 256}
WIDE |= {"moe_intermediate_size": 256, "shared_experts_intermediate_size": 128}
WIDE |= {"initializer_range": 0.05, "num_experts_per_tok": 8, "topk_group": 4}
# A word has the gates of 8 heads.
WIDE |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 16)
WIDE |= dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 16)


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """Matrices of attention, the indexer, experts, and shared experts."""
    quantize, config = FORMATS[name]
    path = write(tmp_path / "plain", **{**CASES[CASE], **WIDE})
    check(*quantized(path, tmp_path, quantize, config))


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_it_is_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal."""
    path = write(tmp_path / "model", **{**CASES[CASE], **WIDE})
    assert 1e-3 < error_of_quantizing(path, quantize) < most
