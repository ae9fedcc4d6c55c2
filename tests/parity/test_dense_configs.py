"""Fields of dense families' config.json: older names, defaults, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import prompt, reference
from driver import greedy
from penstock.faults import BadModel
from penstock.models import family, read_specification
from test_dense_families import Checkpoints, changed, run

OLDER: list[tuple[str, list[str], dict[str, Any]]] = [
    ("bamba", ["rope_parameters", "layer_types", "layers_block_type"],
     {"attn_rotary_emb": 8, "rope_theta": 9000.0, "mamba_d_head": "auto"}),
    ("cohere", ["rope_parameters", "logit_scale"], {"use_parallel_block": True}),
    ("cohere2", ["rope_parameters", "layer_types"], {"sliding_window_pattern": 3}),
    ("bloom", ["hidden_size", "max_position_embeddings"], {"n_embed": 192, "seq_length": 300}),
    ("exaone4", ["layer_types", "rope_parameters"], {"rope_theta": 1e6}),
    ("falcon-7b", ["rope_parameters", "num_ln_in_parallel_attn"],
     {"rope_theta": 9000.0}),
    ("apertus", [], {"rope_parameters": None}),
    ("apertus", ["rope_parameters"],
     {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
    ("gemma", ["rope_parameters"], {"hidden_act": "gelu"}),
    ("gemma4", ["per_layer_config"], {"global_head_dim": 32, "num_global_key_value_heads": 1}),
    ("gemma4-shared", ["per_layer_config", "rope_parameters"], {"global_head_dim": 32}),
    ("gemma4", ["sliding_window", "final_logit_softcapping"],
     {"use_bidirectional_attention": "vision"}),
    ("glm", ["rope_parameters"], {"rope_theta": 500.0}),
    ("granite_swa", ["layer_types", "layer_rope_theta", "rms_norm_eps"], {"rope_theta": 9000.0}),
    ("helium", ["rope_parameters", "rms_norm_eps"], {}),
    ("hyperclovax", [], {"attention_multiplier": None}),
    ("granitemoehybrid-dense", [],
     {"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_d_head": "auto"}),
    ("hunyuan", ["rope_parameters", "rms_norm_eps"],
     {"rope_theta": 9000.0, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}),
    ("bailing_hybrid", ["layer_types", "mlp_layer_types", "rope_parameters"], {}),
    ("bailing_hybrid", ["topk_group"], {"kda_safe_gate": False}),
    ("kimi_linear-latent-queries", ["layer_types"], {}),
    ("kimi_linear-latent-queries",
     ["layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "head_dim"],
     {"linear_attn_config": {"full_attn_layers": [5], "kda_layers": [1, 2, 3, 4], "head_dim": 12,
                             "num_heads": 8, "short_conv_kernel_size": 4},
      "first_k_dense_replace": 1, "mla_use_nope": True, "moe_layer_freq": 1, "rope_theta": 9000.0,
      "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "rope_scaling": None}),
    ("jais2", ["attention_bias", "mlp_bias", "hidden_act", "layer_norm_eps"], {}),
    ("jamba-dense", ["mamba_dt_rank", "rms_norm_eps", "mamba_proj_bias", "num_experts_per_tok"],
     {"mamba_inner_layernorms": True, "n_ctx": 512, "calc_logits_for_entire_prompt": False,
      "num_logits_to_keep": 1}),
    ("jamba-dense", [], {"mamba_dt_rank": "auto", "sliding_window": None}),
    ("lfm2", ["layer_types", "rope_parameters", "tie_word_embeddings"],
     {"full_attn_idxs": [2], "rope_theta": 9000.0, "tie_embedding": True, "block_ff_dim": 96}),
    ("lfm3", [], {"rope_parameters": None}),
    ("lfm3", [], {"rope_parameters": {"full_attention": {"rope_type": "default"},
                                      "sliding_attention": {"rope_type": "default"}}}),
    ("minimax", ["rope_parameters", "mlp_alpha_factor", "full_attn_beta_factor"],
     {"sliding_window": 24, "rope_theta": 9000.0}),
    ("minimax", ["rms_norm_eps", "linear_attn_alpha_factor"], {"postnorm": True}),
    ("olmo_hybrid", ["rope_parameters"], {"rope_theta": None}),
    ("olmo_hybrid", [], {"rope_parameters": {"rope_type": "default"}, "rope_theta": None}),
    ("nemotron_h", ["layers_block_type", "layer_types"], {"hybrid_override_pattern": "M-*MM-"}),
    ("nemotron_h-moe", ["layers_block_type", "layer_types"],
     {"hybrid_override_pattern": "ME*MEM-"}),
    ("nanochat", ["rope_parameters", "rms_norm_eps", "hidden_act", "final_logit_softcapping"],
     {"rope_theta": 9000.0}),
    ("nanochat", [], {"final_logit_softcapping": None}),
    ("nemotron", ["rope_parameters", "hidden_act"], {"rope_theta": 9000.0, "rope_percent": 0.5}),
    ("gpt_neox", ["rope_parameters"], {"rotary_pct": 0.5, "rotary_emb_base": 900}),
    ("gpt_neox", ["rope_parameters"], {}),
    ("gpt_neo", ["attention_layers"], {}),
    ("gptj", ["n_ctx"], {"rotary": True, "scale_attn_weights": True}),
    ("mpt", ["attn_config"], {}),
    ("olmo", ["rope_parameters", "hidden_act"], {"rope_theta": 9000.0, "clip_qkv": None}),
    ("olmo3", ["rope_parameters", "layer_types"],
     {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                "original_max_position_embeddings": 64}}),
    ("olmo_hybrid", ["linear_num_key_heads"],
     {"rope_parameters": {"rope_theta": 9000.0, "rope_type": "default"}, "rms_norm_eps": 1e-6,
      "linear_allow_neg_eigval": False}),
    ("opt", ["word_embed_proj_dim", "tie_word_embeddings", "enable_bias", "activation_function"],
     {"layerdrop": 0.1, "prefix": "</s>", "learned_embeddings": True}),
    ("phi", ["rope_parameters"], {"partial_rotary_factor": 0.25, "rope_theta": 9000.0}),
    ("qwen3_5", ["rope_parameters", "layer_types"],
     {"rope_theta": 9000.0, "partial_rotary_factor": 0.5, "full_attention_interval": 3}),
    ("qwen3_5", ["rope_parameters", "layer_types"], {"full_attention_interval": 3}),
    ("smollm3", ["no_rope_layers", "layer_types", "rope_parameters"],
     {"no_rope_layer_interval": 3}),
    ("stablelm", ["rope_parameters"], {"rope_theta": 9000}),
]  # fmt: skip


@pytest.mark.parametrize(("case", "dropped", "fields"), OLDER)
def test_older_fields_and_defaults(
    checkpoint: Checkpoints, case: str, dropped: list[str], fields: dict[str, Any], tmp_path: Path
) -> None:
    """As transformers reads the same file."""
    path = changed(checkpoint(case), tmp_path, *dropped, **fields)
    sequence = greedy(prompt(90), 8)
    logits = run(path, sequence)
    with torch.inference_mode():
        tokens = torch.tensor([prompt(90) + sequence.tokens])
        theirs = reference(path, torch.float64)(tokens).logits[0, 89:-1].double()
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cohere", {"use_parallel_block": False}, "use_parallel_block False"),
    ("cohere2", {"order_of_interleaved_layers": "x"}, "order_of_interleaved_layers 'x'"),
    ("apertus", {"hidden_act": "silu"}, "hidden_act 'silu'"),
    ("apertus", {"qk_norm": False}, "qk_norm False"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm True"),
    ("falcon-7b", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2 with"),
    ("falcon-40b", {"parallel_attn": False}, "parallel_attn False"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    ("cwm", {"attention_bias": True}, "attention_bias True is not supported"),
    ("helium", {"mlp_bias": True}, "mlp_bias True is not supported"),
    ("minicpm3", {"scale_depth": -1}, "scale_depth must be a number above 0"),
    ("youtu", {"attention_bias": True}, "attention_bias True is not supported"),
    ("gemma3n", {"altup_active_idx": 3}, "altup_active_idx 3 is none of 3 streams"),
    ("gemma3n", {"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input 0"),
    ("gemma3n", {"activation_sparsity_pattern": [0.5] * 4}, "a number for each of 5 layers"),
    ("gemma3n", {"activation_sparsity_pattern": [1.0] * 5}, "shares from 0 to below 1"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
    ("gemma4", {"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1"),
    ("gemma4", {"per_layer_config": {"2": {"window": 7}}}, "per_layer_config.2.window"),
    ("gemma4-shared", {"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input 7"),
    ("bailing_hybrid", {"kda_lower_bound": 1.0}, "kda_lower_bound must be below 0, found 1.0"),
    ("bailing_hybrid", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
    ("bailing_hybrid", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("bailing_hybrid", {"attention_bias": True}, "attention_bias True is not supported"),
    ("bamba", {"attn_rotary_emb": 16}, "attn_rotary_emb 16"),
    ("bamba", {"mamba_d_head": 8}, "8 Mamba heads of 8 are not 128 elements"),
    ("falcon_h1", {"attention_bias": True}, "attention_in_multiplier"),
    ("falcon_h1", {"projectors_bias": True}, "projectors_bias True"),
    ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers must hold 5"),
    ("falcon_h1", {"mlp_multipliers": [1.0]}, "mlp_multipliers must hold 2"),
    ("gemma4", {"altup_active_idx": 3}, "altup_active_idx 3 is not supported"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention True"),
    ("gpt_neo", {"attention_types": [[["local", "global"], 2]]}, "for each of 3 layers"),
    ("gpt_neo", {"attention_types": [[["local"], "3"]]}, "for each of 3 layers"),
    ("gpt_neo", {"attention_types": 3}, "global or local for each of 3 layers, found 3"),
    ("gpt_neo", {"attention_types": [[["dilated"], 3]]}, "must give global or local"),
    ("gpt_neo", {"attention_layers": ["local"] * 3}, "attention_types must give"),
    ("gptj", {"rotary_dim": 5}, "the number must be even"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier must be a number above 0"),
    ("granite_swa", {"layer_rope_theta": [9000.0]}, "a number for each of 3 layers"),
    ("granite_swa", {"layer_rope_theta": [-1.0] * 3}, "layer_rope_theta must be a number above 0"),
    ("granitemoehybrid-dense", {"mamba_n_groups": 3}, "not a multiple of 3 groups"),
    ("granitemoehybrid-dense", {"mamba_d_conv": 1}, "must have a width of at least 2"),
    ("granitemoehybrid-dense", {"time_step_limit": [0.0]}, "time_step_limit must be two numbers"),
    ("granitemoehybrid-dense", {"layer_types": ["mamba"] * 4}, "full_attention for at least one"),
    ("hunyuan", {"use_qk_norm": False}, "use_qk_norm False"),
    ("hunyuan", {"use_cla": True}, "use_cla True"),
    ("hunyuan", {"attention_head_dim": 64}, "attention_head_dim 64"),
    ("hunyuan", {"rope_parameters": {"rope_type": "yarn", "alpha": 50.0}}, "rope_type 'yarn'"),
    ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset must be a whole number below"),
    ("jamba", {"expert_layer_offset": -1}, "expert_layer_offset must be a whole number below"),
    ("jamba", {"attn_layer_period": 9, "attn_layer_offset": 8}, "for at least one layer"),
    ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms False is not supported"),
    ("jamba", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ("jamba", {"sliding_window": 24}, "sliding_window 24 is not supported"),
    ("jamba", {"attention_bias": True}, "attention_bias True is not supported"),
    ("jamba", {"mamba_d_conv": 1}, "must have a width of at least 2"),
    ("jamba", {"mamba_dt_rank": "all"}, "mamba_dt_rank must be"),
    ("jamba", {"num_experts_per_tok": 9}, "a token can only choose among 8 experts"),
    ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope False is not supported"),
    ("kimi_linear", {"moe_router_activation_func": "tanh"}, "moe_router_activation_func 'tanh'"),
    ("kimi_linear", {"moe_layer_freq": 2}, "moe_layer_freq 2"),
    ("kimi_linear", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1"),
    ("kimi_linear", {"use_grouped_topk": False}, "use_grouped_topk False"),
    ("kimi_linear", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("kimi_linear", {"attention_bias": True}, "attention_bias True is not supported"),
    ("kimi_linear", {"rope_scaling": {"type": "yarn"}}, "rope_scaling {'type': 'yarn'}"),
    ("kimi_linear", {"num_key_value_heads": 2}, "num_key_value_heads 2"),
    ("kimi_linear", {"linear_conv_kernel_dim": 1}, "must have a width of at least 2"),
    ("kimi_linear", {"layer_types": ["linear_attention"] * 4}, "for at least one layer"),
    ("kimi_linear", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must hold"),
    ("kimi_linear", {"linear_attn_config": {"safe_gate": True}}, "linear_attn_config.safe_gate"),
    ("kimi_linear", {"linear_attn_config": [1]}, "linear_attn_config must be an object"),
    ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2]}},
     "must list each layer from 1 to 4 once"),
    ("kimi_linear", {"linear_attn_config": {"kda_layers": [1, 2, 3]}},
     "must list each layer from 1 to 4 once"),
    ("jais2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ("jais2", {"hidden_act": "relu6"}, "hidden_act 'relu6'"),
    ("lfm2", {"conv_L_cache": 1}, "conv_L_cache must be at least 2"),
    ("lfm2", {"use_pos_enc": False}, "use_pos_enc False"),
    ("lfm3", {"attention_bias": True}, "attention_bias True is not supported"),
    ("lfm3", {"layer_types": ["conv"] * 5}, "not conv for all"),
    ("lfm3", {"layer_types": ["full_attention"]}, "for each of 5 layers"),
    ("minimax", {"postnorm": False}, "postnorm False"),
    ("minimax", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act 'gelu_pytorch_tanh'"),
    ("minimax", {"layer_types": ["linear_attention"] * 5}, "full_attention for at least one layer"),
    ("minimax", {"mlp_beta_factor": 0}, "mlp_beta_factor must be a number above 0"),
    ("minimax", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ("minimax", {"shared_intermediate_size": 96}, "shared_intermediate_size 96"),
    ("minimax", {"use_qk_norm": True}, "use_qk_norm True"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln True"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi False"),
    ("mpt", {"attn_config": {"rope": True}}, "attn_config.rope True"),
    ("mpt", {"attn_config": 1}, "attn_config must be an object"),
    ("mpt", {"no_bias": False}, "no_bias False"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type 'rmsnorm'"),
    ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale 'inv_sqrt_d_model'"),
    ("nemotron_h", {"layers_block_type": ["linear_attention"]}, "full_attention at least once"),
    ("nemotron_h-moe", {"mlp_hidden_act": "silu"}, "only with relu_squared"),
    ("nemotron_h-moe", {"n_shared_experts": 2}, "n_shared_experts 2"),
    ("nemotron_h-moe", {"moe_latent_size": 8}, "mlp_bias with moe_latent_size"),
    ("nemotron_h", {"layers_block_type": ["mlp", "full_attention"]}, "does not follow attention"),
    ("nemotron_h", {"sliding_window": 9}, "sliding_window 9"),
    ("nanochat", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
    ("nanochat", {"mlp_bias": True}, "mlp_bias True"),
    ("nanochat", {"tie_word_embeddings": True}, "tie_word_embeddings True"),
    ("nemotron", {"rope_percent": 0.25}, "rope_percent 0.25 is not supported, only 0.5 is"),
    ("olmo", {"clip_qkv": -8.0}, "clip_qkv must be a number above 0"),
    ("olmo", {"hidden_act": "relu"}, "a gate with relu is not supported"),
    ("olmo", {"hidden_act": "relu2"}, "a gate with relu_squared"),
    ("olmo3", {"layer_types": ["chunked"]}, "layer_types must hold"),
    ("olmo_hybrid", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("olmo_hybrid", {"rope_parameters": {"rope_theta": None, "rope_type": "yarn"}},
     "rope_type 'yarn' is not supported, only 'default'"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm True"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False"),
    ("opt", {"scale_embeddings": True}, "scale_embeddings True"),
    ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim 32 is not supported, only 64"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm True"),
    ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate False"),
    ("qwen3_5", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("qwen3_5", {"layer_types": ["linear_attention"] * 4}, "full_attention for at least one layer"),
    ("qwen3_5", {"layer_types": ["sliding_attention"] * 4}, "layer_types must hold"),
    ("qwen3_5", {"linear_num_value_heads": 6}, "not a multiple of linear_num_key_heads, 4"),
    ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be at least 2"),
    ("smollm3", {"no_rope_layers": [1, 2, 0]}, "no_rope_layers must hold 0 or 1"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must hold 0 or 1"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type 'rms_norm'"),
    ("granite", {"attention_window": 7}, "attention_window 7 is not supported"),
    ("olmo2", {"clip_qkv": True}, "clip_qkv True is not supported"),
    ("llama2", {"mup_scale": 0.5}, "mup_scale 0.5 is not supported"),
    ("gemma3", {"mup": "x"}, "mup 'x' is not supported"),
    ("olmo2", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 2]}},
     "rope_parameters.mrope_section [1, 2] is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "fields", "text"), REFUSED)
def test_fields_are_refused_by_name(
    checkpoint: Checkpoints, case: str, fields: dict[str, Any], text: str
) -> None:
    raw = {**json.loads((checkpoint(case) / "config.json").read_text()), **fields}
    with pytest.raises(BadModel, match=re.escape(text)):
        read_specification(family(raw), raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"mup_scale": 1.0, "clip_qkv": None, "extra": False, "layers": [], "note": ""},
        {"_name_or_path": "x", "hidden_dropout": 0.1, "auto_map": {"a": "b"}},
        {"unsloth_version": "2025.1", "pad_token_id": 7, "classifier_dropout": 0.1},
    ],
)
def test_neutral_fields_are_accepted(checkpoint: Checkpoints, fields: dict[str, Any]) -> None:
    raw = {**json.loads((checkpoint("llama2") / "config.json").read_text()), **fields}
    assert len(read_specification(family(raw), raw).layers) == 3
