"""Write a model folder that transformers, and Penstock, can load."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .model import Brook, Shape
from .sample import BOS, END, EOS, PAD

_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(shape: Shape, tokens: dict[str, object]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **tokens,
    }


def export_tokenizer(tokenizer: Tokenizer, shape: Shape, folder: Path) -> None:
    """Write everything but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(_TEMPLATE, folder / "chat_template.jinja")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.context,
        },
    )
    tokens: dict[str, object] = {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": [tokenizer.token_to_id(END), tokenizer.token_to_id(EOS)],
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    _write_json(folder / "config.json", _config(shape, tokens))
    _write_json(folder / "generation_config.json", {**tokens, "do_sample": False})


def export_weights(model: Brook, folder: Path) -> None:
    """Write the weights in bfloat16."""
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
