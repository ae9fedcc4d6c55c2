"""The Llama family: Llama 2 to 3.3, TinyLlama, Mistral and Qwen2 differ only in their config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from penstock.attention import StepContext
from penstock.config import Fields, ModelConfig, read_rope
from penstock.faults import BadModel
from penstock.layers import Attention, Build, Embedding, GatedMlp, Head, Layer, RmsNorm
from penstock.weights import Target, checkpoint_names

NAMES = {
    "model.embed_tokens": "embedding",
    "model.layers.{}.input_layernorm": "blocks.{}.attention_norm",
    "model.layers.{}.self_attn.q_proj": "blocks.{}.attention.qkv.q",
    "model.layers.{}.self_attn.k_proj": "blocks.{}.attention.qkv.k",
    "model.layers.{}.self_attn.v_proj": "blocks.{}.attention.qkv.v",
    "model.layers.{}.self_attn.o_proj": "blocks.{}.attention.out",
    "model.layers.{}.post_attention_layernorm": "blocks.{}.mlp_norm",
    "model.layers.{}.mlp.gate_proj": "blocks.{}.mlp.gate_up.gate",
    "model.layers.{}.mlp.up_proj": "blocks.{}.mlp.gate_up.up",
    "model.layers.{}.mlp.down_proj": "blocks.{}.mlp.down",
    "model.norm": "norm",
    "lm_head": "head",
}
SLIDING, FULL = "sliding_attention", "full_attention"  # of layer_types


class Block(Layer):
    """One decoder layer. The residual is carried beside the output, to be added in the norms, where
    the product before did not add it."""

    def __init__(self, config: ModelConfig, build: Build, index: int) -> None:
        self.attention_norm = RmsNorm(build, config.hidden, config.norm_eps)
        self.attention = Attention(build, config, index)
        self.mlp_norm = RmsNorm(build, config.hidden, config.norm_eps)
        self.mlp = GatedMlp(build, config.hidden, config.intermediate, config.mlp_bias)

    def __call__(
        self, x: Tensor, residual: Tensor | None, context: StepContext, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The last layer's (output, residual), [T, hidden] each, to this one's; without a residual
        it is in the output already.

        Of `rows` [R] alone, if given: [R, hidden] each. Keys and values are written of all.
        """
        x, residual = self.attention(self.attention_norm.norm_input(x, residual), context, rows)
        return self.mlp(self.mlp_norm.norm_input(x, residual))


class Llama(Layer):
    """Llama 2, 3, 3.1 to 3.3, TinyLlama."""

    ignored: tuple[str, ...] = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

    def __init__(self, config: ModelConfig, build: Build) -> None:
        self.embedding = Embedding(build, config.vocab, config.hidden)
        self.blocks = [Block(config, build, i) for i in range(config.layers)]
        self.norm = RmsNorm(build, config.hidden, config.norm_eps)
        tied = self.embedding if config.tied else None
        self.head = Head(build, config.vocab, config.hidden, tied)
        if config.tied:
            self.ignored = (*self.ignored, r"lm_head\.weight")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """The fields that all of the family share, and Llama's biases. Raises BadModel."""
        fields = Fields(raw)
        fields.require("hidden_act", "silu")
        hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        layers = fields.count("num_hidden_layers")
        return ModelConfig(
            hidden=hidden,
            intermediate=fields.count("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_dim=fields.count("head_dim", hidden // heads),
            vocab=fields.count("vocab_size"),
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_positions=fields.count("max_position_embeddings"),
            rope=read_rope(fields),
            windows=(0,) * layers,
            tied=fields.flag("tie_word_embeddings"),
            qkv_bias=fields.flag("attention_bias"),
            output_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
        )

    def checkpoint_targets(self) -> dict[str, Target]:
        """Targets by the names of HF checkpoints."""
        return checkpoint_names(self.all_targets(), NAMES)

    def finish(self) -> None:
        """Lets every layer repack its weights."""
        for path, layer in self.walk():
            if path:
                layer.finish()

    def forward(self, ids: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden], or [R, hidden] of `rows`."""
        x, residual = self.embedding(ids), None
        for block in self.blocks[:-1]:
            x, residual = block(x, residual, context)
        # Of a prompt, the last layer's output is asked for at few places.
        return self.norm(*self.blocks[-1](x, residual, context, rows))

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""
        return self.head(hidden)


class Mistral(Llama):
    """Mistral 7B and its kin: every layer slides, unless sliding_window is null."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Adds the window of all layers."""
        config = super().read_config(raw)
        window = 0 if raw.get("sliding_window") is None else Fields(raw).count("sliding_window")
        return replace(config, windows=(window,) * config.layers)


class Qwen2(Llama):
    """Qwen2 and 2.5: biases on q, k and v; layers from max_window_layers on may slide."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Adds biases and windows; `layer_types` wins over the older fields, as in transformers."""
        config, fields = super().read_config(raw), Fields(raw)
        layers = config.layers
        slides = fields.flag("use_sliding_window") and raw.get("sliding_window") is not None
        window = fields.count("sliding_window") if slides else 0
        first = int(fields.number("max_window_layers", 28))
        kinds = raw.get("layer_types") or [SLIDING if i >= first else FULL for i in range(layers)]
        known = isinstance(kinds, list) and all(kind in (SLIDING, FULL) for kind in kinds)
        if not known or len(kinds) != layers:
            raise BadModel(
                f"config.json: layer_types must hold {SLIDING} or {FULL} for each of {layers} "
                f"layers, found {kinds!r}"
            )
        windows = tuple(window if kind == SLIDING else 0 for kind in kinds)
        return replace(config, windows=windows, qkv_bias=True, output_bias=False)
