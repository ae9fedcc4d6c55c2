"""Qwen 1: Llama under other names, biases on queries, keys and values, LogN attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    NTK_POWERS,
    Fields,
    LayerSpec,
    LogNScale,
    MlpSpec,
    NormSpec,
    RopeSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_residual,
)
from penstock.models.llama import Llama

LAYER = "transformer.h.{}."
COMPUTING = (  # how its own code computes
    "attn_dropout_prob", "emb_dropout_prob", "bf16", "fp16", "fp32", "onnx_safe", "softmax_in_fp32",
    "use_flash_attn", "use_cache_quantization", "use_cache_kernel",
)  # fmt: skip


class Qwen1(Llama):
    """Qwen and Qwen-Chat, 1.8B to 72B. Beyond `seq_length` RoPE's base and the queries grow."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        LAYER + "ln_1": "blocks.{}.attention_norm",
        LAYER + "attn.c_attn": "blocks.{}.attention.qkv",
        LAYER + "attn.c_proj": "blocks.{}.attention.out",
        LAYER + "ln_2": "blocks.{}.mlp_norm",
        LAYER + "mlp.w2": "blocks.{}.mlp.gate_up.gate",
        LAYER + "mlp.w1": "blocks.{}.mlp.gate_up.up",
        LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
    ignored = (r"transformer\.(h\.\d+\.attn\.)?rotary_emb\.inv_freq",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        fields = Fields(layered({"head_dim": raw.get("kv_channels")}, raw))
        fields.ignore(*COMPUTING, "kv_channels", "max_position_embeddings")
        for name, value in (("no_bias", True), ("scale_attn_weights", True), ("rotary_pct", 1.0)):
            fields.require(name, value)
        length = fields.count("seq_length")
        kind = NTK_POWERS if fields.flag("use_dynamic_ntk", True) else "default"
        numbers = {"original_max_position_embeddings": length}
        rope = RopeSpec(kind, fields.positive("rotary_emb_base", 10000.0), numbers)
        scale = LogNScale(length) if fields.flag("use_logn_attn", True) else None
        attention = read_attention(fields, rope, qkv_bias=True, position_scale=scale)
        mlp = MlpSpec(fields.count("intermediate_size") // 2)  # gates are counted too
        residual = read_residual(fields, norm=NormSpec(fields.number("layer_norm_epsilon", 1e-6)))
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, residual, max_positions=length)
