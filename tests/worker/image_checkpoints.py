"""Tiny checkpoints of models that take images, written by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoints import CASES, SHAPE
from safetensors.torch import load_file, save_file
from text_parts import STEP_VISION
from transformers import (
    Exaone4_5_Config,
    Exaone4_5_ForConditionalGeneration,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    MllamaConfig,
    MllamaForConditionalGeneration,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Step3p7Config,
    Step3p7ForConditionalGeneration,
)

AXES = {"rope_type": "default", "rope_theta": 9000.0, "mrope_section": [2, 3, 3]}
VISION = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 1}
QWEN2 = {**VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
QWEN25 = {**VISION, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 64}
QWEN25 |= {"fullatt_block_indexes": [0], "window_size": 8}
QWEN3 = {**VISION, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 64}
QWEN3 |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
WINDOW = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
MIXTURE |= {"mlp_only_layers": [1], "head_dim": 16}
INTERLEAVED = {**AXES, "mrope_interleaved": True}
GLM = {"depth": 1, "num_heads": 2, "hidden_size": 32, "intermediate_size": 32, "image_size": 8}
GLM |= {"patch_size": 4, "spatial_merge_size": 1, "out_hidden_size": 64}
PARTLY = {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
SHARED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
SHARED |= {"rope_parameters": {**AXES, **PARTLY}, "routed_scaling_factor": 2.5, "head_dim": 16}
KIMI = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
KIMI |= {"intermediate_size": 32, "pos_emb_height": 4, "pos_emb_width": 4, "patch_size": 4}
MUSE = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "patch_size": 4}
MUSE |= {"intermediate_size": 32, "pos_emb_height": 4, "pos_emb_width": 4}
GLIMMER: dict[str, Any] = {"model_type": "muse_glimmer_text", "num_hidden_layers": 5}
GLIMMER |= {"head_dim": 16, "sliding_window": 24, "post_norm_eps": 1e-3, "qk_scale_factor": 2.5}
GLIMMER |= {"layer_rope_theta": [0, 9000.0, 9000.0, 9000.0, 0], "final_logit_softcapping": 9.0}
EXAONE = {**VISION, "num_key_value_heads": 1, "hidden_size": 32, "intermediate_size": 32}
EXAONE |= {"out_hidden_size": 64, "fullatt_block_indexes": [0], "window_size": 8}
MLLAMA = {"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2}
MLLAMA |= {"intermediate_size": 32, "vision_output_dim": 64, "image_size": 28, "patch_size": 14}
ROPE = {"rope_type": "default", "rope_theta": 9000.0}
KINDS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "qwen2-vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig, QWEN2, WINDOW),
    "qwen2.5-vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, QWEN25, {}),
    "qwen3-vl": (Qwen3VLForConditionalGeneration, Qwen3VLConfig, QWEN3, {"head_dim": 16}),
    "qwen3-vl-moe": (Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig, QWEN3, MIXTURE),
    "kimi-k25": (
        Kimi_K25ForConditionalGeneration,
        Kimi_K25Config,
        KIMI,
        {**CASES["deepseek-v3"], "num_nextn_predict_layers": 0},
    ),
    "exaone4.5": (
        Exaone4_5_ForConditionalGeneration,
        Exaone4_5_Config,
        EXAONE,
        {**CASES["exaone4"], "rope_parameters": ROPE},
    ),
    "mllama": (
        MllamaForConditionalGeneration,
        MllamaConfig,
        {**MLLAMA, "intermediate_layers_indices": [0]},
        {"rope_parameters": ROPE, "num_hidden_layers": 5, "cross_attention_layers": [1, 3]},
    ),
    "muse-glimmer": (
        MuseGlimmerForConditionalGeneration,
        MuseGlimmerConfig,
        MUSE,
        {**GLIMMER, "rope_parameters": ROPE},
    ),
    "step3.7": (
        Step3p7ForConditionalGeneration,
        Step3p7Config,
        STEP_VISION,
        CASES["step3p7"],
    ),
    "glm4v": (Glm4vForConditionalGeneration, Glm4vConfig, GLM, {}),
    "glm4v-moe": (Glm4vMoeForConditionalGeneration, Glm4vMoeConfig, GLM, SHARED),
}


def written(path: Path, kind: str, **more: Any) -> Any:
    """Writes a tiny checkpoint, whose text has `more` fields; returns the model in float64."""
    cls, config, vision, changes = KINDS[kind]
    axes = INTERLEAVED if kind.startswith("qwen3") else AXES
    text = {**SHAPE, "rope_parameters": axes, "pad_token_id": 0, **changes, **more}
    return saved(
        path, cls, config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    )


def saved(path: Path, cls: Any, config: Any) -> Any:
    """Writes a random model of a class; returns it in float64."""
    torch.manual_seed(7)
    config._attn_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    model.set_experts_implementation("eager")
    return model.double()


def older(path: Path) -> None:
    """Rewrites a checkpoint as Qwen2-VL and Qwen2.5-VL were published."""
    found = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    assert any(name.startswith("visual.") for name in found)
    save_file(found, path / "model.safetensors")
    raw = json.loads((path / "config.json").read_text())
    text = raw.pop("text_config")
    rope = text.pop("rope_parameters")
    raw = {**text, **raw, "rope_theta": rope["rope_theta"]}
    raw["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    (path / "config.json").write_text(json.dumps(raw))


def in_layers(path: Path) -> None:
    """Renames the layers of text as Kimi K2.5 was published."""
    found = {
        name.replace("language_model.model.blocks.", "language_model.model.layers."): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(found, path / "model.safetensors")


def by_inputs(path: Path) -> None:
    """Stores the matrices of experts by inputs first, as Qwen3-VL was published."""
    found = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(found, path / "model.safetensors")


def as_step35(path: Path) -> None:
    """Rewrites a checkpoint of Step 3.7 as Step 3.5 was published: with fields of other names, and
    three layers behind the last one that predict further tokens."""
    file, more = path / "model.safetensors", 3
    found = {name: one for name, one in load_file(file).items() if not name.startswith("vi")}
    extra = {f"model.layers.{4 + layer}.eh_proj.weight": torch.ones(2, 2) for layer in range(more)}
    save_file(found | extra, file)
    text = json.loads((path / "config.json").read_text())["text_config"]
    ropes, sparse = text.pop("rope_parameters"), text.pop("mlp_layer_types")
    kinds = [*text["layer_types"], *["sliding_attention"] * more]
    full, sliding = ropes["full_attention"], ropes["sliding_attention"]
    assert text.pop("per_layer_config")
    for name in ("swiglu_limits", "swiglu_limits_shared"):
        text[name] = [limit or 0.0 for limit in text[name]] + [0.0] * more
    heads = text.pop("num_sliding_attention_heads")
    text |= {
        "architectures": ["Step3p5ForCausalLM"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "head_dim": text["head_dim"],
            "num_attention_groups": text["num_key_value_heads"],
            "num_attention_heads": heads,
            "true_head_dim": text["head_dim"],
        },
        "layer_types": kinds,
        "max_seq_len": text["max_position_embeddings"],
        "moe_layers_enum": ",".join(str(i) for i, mlp in enumerate(sparse) if mlp == "sparse"),
        "moe_num_experts": text.pop("n_routed_experts"),
        "moe_top_k": text.pop("num_experts_per_tok"),
        "num_attention_groups": text.pop("num_key_value_heads"),
        "num_nextn_predict_layers": more,
        "partial_rotary_factors": [0.5 if kind.startswith("full") else 1.0 for kind in kinds],
        "rope_scaling": {name: full[name] for name in full if name not in THETA_AND_PART},
        "rope_theta": [ropes[kind]["rope_theta"] for kind in kinds],
        "use_rope_layers": [],
        "yarn_only_types": ["full_attention"],
    }
    assert sliding["rope_type"] == "default"
    (path / "config.json").write_text(json.dumps(text))


THETA_AND_PART = ("rope_theta", "partial_rotary_factor")
OLDER: dict[str, Callable[[Path], None]] = {
    "qwen2-vl": older,
    "qwen2.5-vl": older,
    "qwen3-vl-moe": by_inputs,
    "kimi-k25": in_layers,
    "step3.7": as_step35,
}
"""How to rewrite those that were published with other names, or other matrices."""
