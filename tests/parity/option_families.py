"""Families that the product does not register: each has options that no registered one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.attention import StepContext
from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    NormKind,
    NormSpec,
    Placement,
    QkNorm,
    QkNormWidth,
    Specification,
    read_activation,
    read_attention,
    read_decoder,
    read_residual,
    read_rope,
)
from penstock.layers import Block, Build, Residual
from penstock.models.decoder import LLAMA_NAMES, Decoder
from penstock.models.llama import Llama
from torch import Tensor

LAYER = "model.layers.{}."


def renamed(names: Mapping[str, str], **changes: str | None) -> dict[str, str]:
    """`names` with other last components of modules, or without those that are None."""
    found = {}
    for module, path in names.items():
        before, _, last = module.rpartition(".")
        new = changes.get(last, last)
        if new is not None:
            found[f"{before}.{new}" if before else new] = path
    return found


class Cohere(Decoder):
    """Parallel blocks, LayerNorm without bias, RoPE of neighbours, scaled logits."""

    names: ClassVar[Mapping[str, str]] = {
        module: path.replace("attention_norm", "norm")
        for module, path in LLAMA_NAMES.items()
        if "mlp_norm" not in path
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        fields = Fields(raw)
        norm = NormSpec(fields.number("layer_norm_eps"), NormKind.LAYER)
        rope = replace(read_rope(fields), interleaved=True)
        layer = LayerSpec(read_attention(fields, rope), MlpSpec(fields.count("intermediate_size")))
        residual = read_residual(fields, norm=norm, placement=Placement.PARALLEL)
        layers = [layer] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, residual, logits_scale=fields.number("logit_scale"))


class Starcoder2(Decoder):
    """LayerNorm with bias, a feed-forward layer without gate, biases everywhere."""

    names: ClassVar[Mapping[str, str]] = renamed(
        LLAMA_NAMES, gate_proj=None, up_proj=None, down_proj=None
    ) | {
        LAYER + "mlp.c_fc": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        fields = Fields(raw)
        norm = NormSpec(fields.number("norm_epsilon"), NormKind.LAYER, bias=True)
        attention = read_attention(
            fields, read_rope(fields), qkv_bias=True, output_bias=True,
            window=fields.count("sliding_window"),
        )  # fmt: skip
        activation = read_activation(fields, "hidden_act", "gelu_pytorch_tanh")
        mlp = MlpSpec(fields.count("intermediate_size"), activation, bias=True, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, read_residual(fields, norm=norm))


class Granite(Llama):
    """Multipliers of embeddings, scores, layers' outputs and logits."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        spec, fields = super().read_config(raw), Fields(raw)
        scale = fields.number("attention_multiplier")
        spec = spec.with_attention(spec.windows, scale=scale)
        multiplier = fields.number("residual_multiplier")
        return replace(
            spec,
            residual=replace(spec.residual, multiplier=multiplier),
            embedding_scale=fields.number("embedding_multiplier"),
            logits_scale=1 / fields.number("logits_scaling"),
        )


class SmolLm3(Llama):
    """Layers without position embedding."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        spec = super().read_config(raw)
        layers = [
            layer if rotates else replace(layer, attention=replace(layer.attention, rope=None))
            for layer, rotates in zip(spec.layers, raw["no_rope_layers"], strict=True)
        ]
        return replace(spec, layers=tuple(layers))


class Arcee(Llama):
    """Squared ReLU without gate."""

    names: ClassVar[Mapping[str, str]] = renamed(LLAMA_NAMES, gate_proj=None, up_proj=None) | {
        LAYER + "mlp.up_proj": "blocks.{}.mlp.inner.up"
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        spec, fields = super().read_config({**raw, "hidden_act": "silu"}), Fields(raw)
        activation = read_activation(fields, "hidden_act", "relu2")
        mlp = MlpSpec(fields.count("intermediate_size"), activation, gated=False)
        return replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))


class Glm(Decoder):
    """RoPE of neighbours in half of each head; biases on queries, keys and values alone."""

    names: ClassVar[Mapping[str, str]] = {
        m: p for m, p in LLAMA_NAMES.items() if "gate_up" not in p
    } | {LAYER + "mlp.gate_up_proj": "blocks.{}.mlp.gate_up"}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        fields = Fields(raw)
        rope = replace(read_rope(fields, partial=True), interleaved=True)
        attention = read_attention(fields, rope, qkv_bias=True)
        layer = LayerSpec(attention, MlpSpec(fields.count("intermediate_size")))
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"))


class GptBigCode(Decoder):
    """Learned positions, one fused matrix of queries, keys and values."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        "transformer.wpe": "positions",
        "transformer.h.{}.ln_1": "blocks.{}.attention_norm",
        "transformer.h.{}.attn.c_attn": "blocks.{}.attention.qkv",
        "transformer.h.{}.attn.c_proj": "blocks.{}.attention.out",
        "transformer.h.{}.ln_2": "blocks.{}.mlp_norm",
        "transformer.h.{}.mlp.c_fc": "blocks.{}.mlp.inner.up",
        "transformer.h.{}.mlp.c_proj": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        older = {
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        }
        fields = Fields({**raw, **{name: raw[old] for name, old in older.items()}})
        fields.require("multi_query", True)
        norm = NormSpec(fields.number("layer_norm_epsilon"), NormKind.LAYER, bias=True)
        attention = read_attention(fields, None, kv_heads=1, qkv_bias=True, output_bias=True)
        activation = read_activation(fields, "activation_function", "gelu")
        mlp = MlpSpec(fields.count("n_inner"), activation, bias=True, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("n_layer")
        residual = read_residual(fields, norm=norm)
        return read_decoder(fields, layers, residual, tied=True, learned_positions=True)


class OutputNormBlock(Block):
    """A topology of its own: norms of the layers' outputs alone."""

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        partial = self.attention.out.partial
        x = self.attention.group.summed(residual.x) if residual.partial else residual.x
        total = x if residual.total is None else x + residual.total
        mixed = self.attention.product(total, context, rows)
        total = total if rows is None else total.index_select(0, rows)
        total = total + self.attention_norm(Residual(mixed, None, partial))[0]
        inner = self.mlp.product(total)
        return Residual(self.mlp_norm(Residual(inner, None, partial))[0], total, False)


class Olmo2(Llama):
    """Queries and keys normalised over their full width."""

    names: ClassVar[Mapping[str, str]] = renamed(
        LLAMA_NAMES, input_layernorm=None, post_attention_layernorm=None
    ) | {
        LAYER + "post_attention_layernorm": "blocks.{}.attention_norm",
        LAYER + "post_feedforward_layernorm": "blocks.{}.mlp_norm",
        LAYER + "self_attn.q_norm": "blocks.{}.attention.q_norm",
        LAYER + "self_attn.k_norm": "blocks.{}.attention.k_norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        spec = super().read_config(raw)
        norm = QkNorm(spec.residual.norm, QkNormWidth.FULL)
        return spec.with_attention(spec.windows, qk_norm=norm)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> OutputNormBlock:
        return OutputNormBlock(spec, build, index)


FAMILIES = {
    "arcee": Arcee,
    "cohere": Cohere,
    "glm": Glm,
    "gpt_bigcode": GptBigCode,
    "granite": Granite,
    "olmo2": Olmo2,
    "smollm3": SmolLm3,
    "starcoder2": Starcoder2,
}
CASES: dict[str, dict[str, Any]] = {
    "arcee": {"hidden_act": "relu2"},
    "cohere": {"logit_scale": 0.25, "tie_word_embeddings": True, "pad_token_id": 0},
    "glm": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        "pad_token_id": 0,
    },
    "gpt_bigcode": {
        "n_positions": 512,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 96,
        "tie_word_embeddings": True,
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "olmo2": {"pad_token_id": 0},
    "smollm3": {"no_rope_layers": [1, 0, 1], "pad_token_id": 0},
    "starcoder2": {"sliding_window": 24},
}
