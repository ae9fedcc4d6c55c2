"""Tiny checkpoints of all causal language models of transformers, and what becomes of each type."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from penstock.faults import BadModel
from penstock.models import FAMILIES
from penstock.models.fallback.description import describe
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

sys.path.append(str(Path(__file__).parents[1] / "worker"))  # when run as a script

from checkpoints import VOCAB

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/models.md"
HEADER = "| model type | native | through transformers |"
LARGEST = 4_000_000  # parameters
TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
# Fields that a type gets if its configuration has them.
FIELDS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "sliding_window": 24,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    # latent attention
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
DECODER = {"is_decoder": True}
HEAD = {"head_dim": 16}
# Their head_dim is another width, or follows from others.
LATENT: dict[str, Any] = {"head_dim": None, "num_key_value_heads": 4}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONVOLVED = {"layer_types": ["conv", "full_attention", "conv"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
KINDS = ("full_attention", "sliding_attention")
# Its layers differ in more than their windows, so the configuration has no value for all of them.
GEMMA4 = {**HEAD, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
GEMMA4 |= {"global_head_dim": 32, "num_global_key_value_heads": 1, "sliding_window": 24}
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra",
            "ernie", "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer",
            "xlm-roberta", "xlm-roberta-xl",
        ),
        DECODER,
    ),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), HEAD),
    **dict.fromkeys(
        ("axk1", "deepseek_v3", "glm4_moe_lite", "minicpm3", "sarvam_mla", "youtu"), LATENT
    ),
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(KINDS, ROPE)},
    "gemma4_text": {**GEMMA4, "hidden_size_per_layer_input": 16}
    | {"vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 0},
    "gemma4_unified_text": GEMMA4,
    "deepseek_v2": {**LATENT, **ROUTED},
    "dots1": {**ROUTED, "n_shared_experts": 1},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "falcon": {"head_dim": None},
    "lfm2": CONVOLVED,
    "lfm2_moe": CONVOLVED,
    "longcat_flash": {**LATENT, "head_dim": 8, "num_layers": 2, "ffn_hidden_size": 96}
    | {"expert_ffn_hidden_size": 32, "moe_topk": 2, "zero_expert_num": 2},
    "minimax_m3_vl_text": {"dense_intermediate_size": 96, "shared_intermediate_size": 32},
    "moshi": {"ffn_dim": 96},
    "nemotron": {**HEAD, "num_key_value_heads": 2},
    "roc_bert": {**DECODER, "shape_vocab_size": 50, "pronunciation_vocab_size": 50},
    "xmod": {**DECODER, "default_language": "en_XX"},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0}}
    | {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
}  # fmt: skip
# Positions of these are counted from the padding id on, which only the loaded model shows.
REFUSED_WHEN_LOADED = {
    "camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl",
}  # fmt: skip


class NotTiny(Exception):
    """The fields above do not make this type's models small."""


def configuration(model_type: str) -> Any:
    """The tiny configuration of a type."""
    cls = CONFIG_MAPPING[model_type]
    default = cls()
    fields = {n: value for n, value in FIELDS.items() if n in IDS or _has(default, n)}
    fields.update(CHANGES.get(model_type, {}))
    config = cls(**{name: value for name, value in fields.items() if value is not None})
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[cls](config)
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        raise NotTiny(model_type)
    return config


def _has(config: Any, name: str) -> bool:
    """Whether the configuration has a value of this name, of all its layers."""
    try:
        return getattr(config, name, None) is not None
    except (AttributeError, RuntimeError):
        return False


def raw_configuration(model_type: str) -> dict[str, Any]:
    """A config.json: tiny, or the library's default where the type has other fields."""
    try:
        raw = json.loads(configuration(model_type).to_json_string())
    except Exception:  # the libraries' errors are of many kinds
        raw = {"model_type": model_type}
    return {**raw, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]}


def write(model_type: str, path: Path) -> Path:
    """Writes a tiny random checkpoint; biases and norms are random too."""
    torch.manual_seed(7)
    config = configuration(model_type)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    return path


def is_native(model_type: str) -> bool:
    """Whether a native family has the type's architecture."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] in FAMILIES


def refusal(model_type: str) -> str | None:
    """Why transformers cannot run the type here; None if it can."""
    if model_type in REFUSED_WHEN_LOADED:
        return "its positions do not count from 0"
    try:
        describe(raw_configuration(model_type))
    except BadModel as error:
        return re.sub(r"^.*cannot run through transformers: ", "", str(error))
    return None


def row(model_type: str) -> str:
    """The type's row in the table of docs/models.md."""
    reason = refusal(model_type)
    through = "yes" if reason is None else f"no: {reason}"
    return f"| {model_type} | {'yes' if is_native(model_type) else 'no'} | {through} |"


def table() -> str:
    """The table of docs/models.md: all types, and what becomes of each."""
    return "\n".join((HEADER, "|---|---|---|", *map(row, TYPES))) + "\n"


def documented() -> str:
    """The table as docs/models.md has it."""
    _, found, rest = DOCUMENT.read_text(encoding="utf-8").partition(HEADER)
    return found + rest


def running() -> list[str]:
    """The types that transformers runs, by docs/models.md."""
    return re.findall(r"^\| (\S+) \| \w+ \| yes \|$", documented(), re.M)


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8").partition(HEADER)[0]
    DOCUMENT.write_text(text + table(), encoding="utf-8")
