"""Mixtures of experts: fields of config.json that are read, refused, or change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import checkpoint_maker
from penstock.config import MoeSpec
from penstock.faults import BadModel
from penstock.models import family, read_specification

# config.json as published, without fields that are always neutral.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen1.5-MoE-A2.7B": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 8192,
        "max_window_layers": 21,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3-Coder-30B-A3B-Instruct": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5472,
        "max_position_embeddings": 262144,
        "max_window_layers": 28,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "qkv_bias": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.0,
        "shared_expert_intermediate_size": 0,
        "sliding_window": None,
        "use_qk_norm": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Phi-3.5-MoE-instruct": {
        "architectures": ["PhiMoEForCausalLM"],
        "attention_bias": True,
        "hidden_act": "silu",
        "hidden_dropout": 0.0,
        "hidden_size": 4096,
        "input_jitter_noise": 0.01,
        "intermediate_size": 6400,
        "lm_head_bias": True,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.0] * 64,
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0] * 64,
            "short_mscale": 1.243163121016122,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "router_jitter_noise": 0.01,
        "sliding_window": 131072,
        "vocab_size": 32064,
    },
    "GLM-4.5": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "first_k_dense_replace": 3,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 92,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 2.5,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": True,
        "vocab_size": 151552,
    },
    "granite-3.1-3b-a800m": {
        "architectures": ["GraniteMoeForCausalLM"],
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 1536,
        "intermediate_size": 512,
        "logits_scaling": 6.0,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 40,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "MiniMax-M2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "attn_type_list": [1] * 62,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0,
        "max_position_embeddings": 196608,
        "mlp_intermediate_size": 8192,
        "model_type": "minimax",
        "mtp_transformer_layers": 1,
        "num_attention_heads": 48,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 62,
        "num_key_value_heads": 8,
        "num_local_experts": 256,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000,
        "rotary_dim": 64,
        "router_aux_loss_coef": 0.001,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
        "tie_word_embeddings": False,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 200064,
    },
    "ERNIE-4.5-21B-A3B": {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "moe_capacity": [64, 64, 64],
        "moe_gate": "topk",
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_end_index": 27,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_attention_heads": 20,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
        "vocab_size": 103424,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize(
    ("case", "fields", "text"),
    [
        ("qwen3-moe", {"num_experts_per_tok": 9}, "can only choose among 8 experts"),
        ("qwen3-moe", {"num_experts": 4}, "num_experts and num_local_experts must be equal"),
        ("qwen3-moe", {"mlp_only_layers": [1.5]}, "mlp_only_layers must be a list of layers"),
        ("qwen3-moe", {"router_temperature": 0.5}, "router_temperature 0.5 is not supported"),
        ("qwen3-moe", {"hidden_act": "gelu"}, "experts with the activation gelu are"),
        ("qwen2-moe", {"num_shared_gates": 2}, "num_shared_gates 2 is not supported"),
        ("mixtral", {"expert_capacity": 4}, "expert_capacity 4 is not supported"),
        ("kolibri1", {"attention_bias": True}, "attention_bias True is not supported"),
        ("flint", {"use_qk_norm": False}, "use_qk_norm False is not supported"),
        ("dbrx", {"attn_config": {"rope_theta": 5e5}}, "rope_theta is 9000, in attn_config 500000"),
        ("dbrx", {"attn_config": {"bias": True, "kv_n_heads": 2}}, "attn_config.bias True is not"),
        ("dbrx", {"attn_config": [2]}, "attn_config must be an object, found [2]"),
        ("dbrx", {"num_key_value_heads": 4}, "num_key_value_heads 4 is not supported, only 2 is"),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, "ffn_act_fn {'name': 'gelu'}"),
        ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2}}, "expert_weights 2 is not"),
        ("dbrx", {"ffn_config": {"hidden_size": 128}}, "hidden_size 128 is not supported"),
        ("flex_olmo", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported"),
        ("glm4-moe", {"n_group": 3}, "n_group is 3, but 8 experts do not form 3 equal groups"),
        ("glm4-moe", {"topk_group": 5}, "topk_group is 5, more than n_group, which is 4"),
        ("glm4-moe", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
        ("afmoe", {"attention_bias": True}, "attention_bias True is not supported"),
        ("afmoe", {"n_group": 4}, "n_group 4 is not supported"),
        ("afmoe", {"route_norm": False}, "route_norm False is not supported"),
        ("afmoe", {"score_func": "softmax"}, "score_func 'softmax' is not supported"),
        ("exaone_moe", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("exaone_moe", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        ("exaone_moe", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must hold dense or sparse"),
        ("exaone_moe", {"swiglu_limits": [7.0] * 3}, "swiglu_limits [7.0, 7.0, 7.0] is not"),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace 1 is not supported"),
        ("solar_open", {"use_qk_norm": True}, "use_qk_norm True is not supported"),
        ("dots1", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("dots1", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        ("minimax-m2", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("minimax-m2", {"attn_type_list": [1, 0, 1]}, "attn_type_list [1, 0, 1] is not supported"),
        ("minimax-m2", {"shared_intermediate_size": 8}, "shared_intermediate_size 8 is not"),
        ("hunyuan-moe", {"num_shared_expert": [1, 2, 1]}, "num_shared_expert other than 1"),
        ("hunyuan-moe", {"moe_topk": [1]}, "moe_topk must hold a number for each of 3 layers"),
        ("hunyuan-moe", {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe False"),
        ("hy-v3", {"route_norm": False}, "route_norm False is not supported"),
        ("hy-v3", {"expert_hidden_dim": 48}, "expert_hidden_dim 48 is not supported"),
        ("hy-v3", {"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types must hold"),
        ("hy-v3", {"n_group": 4}, "n_group 4"),
        ("hy-v3", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
        ("mimo", {"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_scaling {"),
        ("mimo", {"swa_num_key_value_heads": 2}, "swa_num_key_value_heads 2 is not supported"),
        ("mimo", {"v_head_dim": 48}, "v_head_dim 48 above head_dim is not supported"),
        ("mimo", {"moe_layer_freq": 2}, "mlp_layer_types must hold"),
        ("ernie4_5-moe", {"use_bias": True}, "use_bias True is not supported"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "expert_selection_fn 'tanh'"),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy 'max' is not supported",
        ),
        ("mellum", {"num_mtp_layers": 2}, "num_mtp_layers above 1 is not supported"),
        ("mellum", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must hold"),
        ("mellum", {"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ("laguna", {"gating": "per-element"}, "gating 'per-element' is not supported"),
        ("laguna", {"mlp_only_layers": [0]}, "mlp_only_layers [0] is not supported, only [1]"),
        ("laguna", {"num_attention_heads_per_layer": [4]}, "a number for each of 3 layers"),
        ("laguna", {"moe_router_logit_softcapping": 3.0}, "moe_router_logit_softcapping 3.0"),
        ("laguna", {"attention_bias": True}, "attention_bias True is not supported"),
        ("gpt-oss", {"swiglu_limit": 10.0}, "swiglu_limit 10.0 is not supported"),
        ("gpt-oss", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ],
)
def test_fields_that_are_not_supported(
    checkpoint: Callable[[str], Path], case: str, fields: dict[str, Any], text: str
) -> None:
    raw = json.loads((checkpoint(case) / "config.json").read_text())
    with pytest.raises(BadModel, match=re.escape(text)):
        read_specification(family(raw), {**raw, **fields})


def test_neutral_fields_are_accepted(checkpoint: Callable[[str], Path]) -> None:
    raw = json.loads((checkpoint("mixtral") / "config.json").read_text())
    plain = read_specification(family(raw), raw)
    neutral = {"anything": None, "more": False, "list": [], "router_aux_loss_coef": 0.02}
    assert read_specification(family(raw), {**raw, **neutral}) == plain


def test_weights_of_experts_of_dbrx_may_stay_as_they_are(
    checkpoint: Callable[[str], Path],
) -> None:
    raw = json.loads((checkpoint("dbrx") / "config.json").read_text())
    for given, renormalise in ({}, True), ({"moe_normalize_expert_weights": None}, False):
        changed = {**raw, "ffn_config": {"moe_num_experts": 8, "moe_top_k": 3, **given}}
        (mlp, *_) = (layer.mlp for layer in read_specification(family(raw), changed).layers)
        assert isinstance(mlp, MoeSpec) and mlp.routing.renormalise is renormalise
        assert mlp.expert.intermediate == 3584


def test_names_of_routing_in_dots1(checkpoint: Callable[[str], Path]) -> None:
    raw = json.loads((checkpoint("dots1") / "config.json").read_text())
    plain = read_specification(family(raw), raw)
    for name in ("noaux_tc", "sigmoid"):
        named = {**raw, "scoring_func": name, "topk_method": "noaux_tc", "moe_layer_freq": 1}
        assert read_specification(family(raw), named) == plain


def test_layers_with_experts_of_older_exaone(checkpoint: Callable[[str], Path]) -> None:
    raw = json.loads((checkpoint("exaone_moe") / "config.json").read_text())
    plain = read_specification(family(raw), raw)
    older = {**raw, "is_moe_layer": [True, False, True], "mlp_layer_types": None}
    assert read_specification(family(raw), older) == plain


@pytest.mark.parametrize(("end", "sparse"), [(-1, 3), (1, 1), (3, 3), (4, 3)])
def test_last_layer_with_experts_of_ernie(
    checkpoint: Callable[[str], Path], end: int, sparse: int
) -> None:
    """Of four layers; the first one is dense."""
    raw = json.loads((checkpoint("ernie4_5-moe") / "config.json").read_text())
    spec = read_specification(family(raw), {**raw, "moe_layer_end_index": end})
    assert sum(isinstance(layer.mlp, MoeSpec) for layer in spec.layers) == sparse


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    """Their fields are all read, or change nothing."""
    raw = PUBLISHED[name]
    spec = read_specification(family(raw), raw)
    experts = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeSpec)]
    dense = raw.get("first_k_dense_replace", raw.get("moe_layer_start_index", 0))
    assert len(experts) == raw["num_hidden_layers"] - dense
    per_token = raw.get("num_experts_per_tok", raw.get("moe_k"))
    assert {one.routing.top_k for one in experts} == {per_token}
    assert spec.kv_heads == raw["num_key_value_heads"]
