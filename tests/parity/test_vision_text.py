"""The text of checkpoints with images: Qwen's and GLM's, whose RoPE has three axes, and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import prompt
from driver import greedy
from image_checkpoints import KINDS, OLDER, written
from local import every_run
from penstock.faults import BadModel
from penstock.models import family, read_specification
from ranks import assert_ranks_agree
from safetensors.torch import load_file, save_file
from test_dense_families import PLAIN, run


@pytest.mark.parametrize(
    ("kind", "is_older"),
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in OLDER)],
)
def test_text_is_computed_as_by_transformers(tmp_path: Path, kind: str, is_older: bool) -> None:
    model = written(tmp_path, kind)
    if is_older:
        OLDER[kind](tmp_path)
    ids = prompt(90)
    runs = every_run(tmp_path, ids)
    with torch.inference_mode():
        tokens = torch.tensor([ids + runs.tokens()])
        theirs = model(tokens).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(runs.logits), theirs, rtol=0, atol=2e-4)
    assert runs.tokens() == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_compute_what_one_does(tmp_path: Path, kind: str) -> None:
    """Of Llama's embedding, which has more rows than its vocabulary, too."""
    written(tmp_path, kind)
    assert_ranks_agree(tmp_path, PLAIN, 2)


def test_exaones_layer_that_predicts_further_tokens_is_not_loaded(tmp_path: Path) -> None:
    model = written(tmp_path, "exaone4.5")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["mtp.fc.weight"] = torch.ones(2, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    sequence = greedy(prompt(90), 8)
    logits = run(tmp_path, sequence)
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt(90) + sequence.tokens])).logits[0, 89:-1]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)


# So that published fields count.
OLD: dict[str, Any] = dict.fromkeys(("rope_parameters", "mlp_layer_types", "per_layer_config"))


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("qwen2-vl", {"mup_scale": 0.5}, "mup_scale 0.5 is not supported"),
        ("qwen3-vl", {"rope_parameters": {"rope_type": "ntk"}}, "rope_type 'ntk'"),
        ("qwen3-vl-moe", {"norm_topk_prob": False}, "norm_topk_prob False"),
        ("muse-glimmer", {"layer_rope_theta": [0, 9000.0, 8.0, 0, 0]}, "layer_rope_theta 8.0"),
        ("muse-glimmer", {"tie_word_embeddings": True}, "tie_word_embeddings True"),
        ("mllama", {"cross_attention_layers": [1, 5]}, "must list some of 5 layers"),
        ("mllama", {"cross_attention_layers": None}, "must list some of 5 layers"),
        ("step3.7", {"swiglu_limits": [0, 0, 6, 7]}, "gates have the bound 6 are not supported"),
        ("step3.7", {"swiglu_limits": [7, 7]}, "swiglu_limits must have a number for each of 4"),
        ("step3.7", {"swiglu_limits_shared": [0, 0, 0, -1]}, "swiglu_limits_shared must be"),
        ("step3.7", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("step3.7", {"gating": "per-element"}, "gating 'per-element' is not supported"),
        ("step3.7", {"attention_bias": True}, "attention_bias True is not supported"),
        ("step3.7", {"mlp_bias": True}, "mlp_bias True is not supported"),
        ("step3.7", {"sink": True}, "sink True is not supported"),
        ("step3.7", {"zero_centered": False}, "zero_centered False is not supported"),
        ("step3.7", {"use_rope_layers": [True, False]}, "use_rope_layers .True, False. is not"),
        ("step3.7", {"sparse_attention_config": {"sparse_block_size": 8}}, "sparse_attention_conf"),
        ("step3.7", {"moe_num_experts": 4}, "moe_num_experts 4 is not supported, only 8 is"),
        ("step3.7", {"num_attention_groups": 4}, "num_attention_groups 4 is not supported"),
        ("step3.7", {"per_layer_config": {"1": {"head_dim": 8}}}, "head_dim of per_layer_config"),
        ("step3.7", {"sliding_window": None}, "sliding_window must be a number"),
        ("step3.7", {"rope_parameters": {"full_attention": {}}}, "sliding_attention must be an ob"),
        ("step3.7", {"layer_types": ["full_attention"] * 5}, "for each of 4 layers"),
        ("step3.7", {**OLD, "rope_theta": [1e4, 9e3, 8e3, 1e4]}, "differ in layers of sliding_att"),
        ("step3.7", {**OLD, "partial_rotary_factors": [1, 1]}, "partial_rotary_factors must have"),
        ("step3.7", {**OLD, "yarn_only_types": []}, "yarn_only_types .. is not supported"),
        ("step3.7", {**OLD, "moe_layers_enum": "1,x"}, "moe_layers_enum must list layers"),
        ("step3.7", {**OLD, "attention_other_setting": {"head_dim": 8}}, "head_dim 8 is not"),
        ("step3.7", {**OLD, "attention_other_setting": {"gqa_v_norm": True}}, "gqa_v_norm True"),
    ],
)
def test_fields_of_text_are_refused_by_name(
    tmp_path: Path, kind: str, fields: dict[str, Any], text: str
) -> None:
    written(tmp_path, kind)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["text_config"] |= fields
    raw |= {name: fields[name] for name in fields if name in raw}  # the whole model's decide
    with pytest.raises(BadModel, match=text):
        read_specification(family(raw), raw)
