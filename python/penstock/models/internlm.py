"""InternLM: Llama; 2 and 2.5 under other names, with queries, keys and values by KV head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import NTK, Fields, Specification, layered
from penstock.models.llama import Llama
from penstock.weights import HeadGroups, Names

LAYER = "model.layers.{}."
QKV = LAYER + "attention.wqkv"


class InternLM(Llama):
    """InternLM 7B and 20B, the first ones: attention may have biases."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads biases and RoPE under their own names, with the defaults of the model's code."""
        fields = Fields(raw)
        own: dict[str, Any] = {"attention_bias": fields.flag("bias", True)}
        if raw.get("rotary") is not None:
            own["rope_scaling"] = _rope(fields.section("rotary"))
        return super().read_config(layered(own, raw))


def _rope(rotary: Fields) -> dict[str, Any]:
    """RoPE as other families spell it."""
    kind, theta = rotary.raw.get("type"), rotary.positive("base", 10000.0)
    if kind == NTK:
        factor = rotary.positive("scaling_factor", 1.0)
        return {"rope_type": NTK, "rope_theta": theta, "factor": factor}
    return {"rope_type": "default" if kind == "origin" else kind, "rope_theta": theta}


class InternLM2(Llama):
    """InternLM 2 and 2.5."""

    names: ClassVar[Mapping[str, str]] = {
        "model.tok_embeddings": "embedding",
        LAYER + "attention_norm": "blocks.{}.attention_norm",
        QKV: "blocks.{}.attention.qkv",
        LAYER + "attention.wo": "blocks.{}.attention.out",
        LAYER + "ffn_norm": "blocks.{}.mlp_norm",
        LAYER + "feed_forward.w1": "blocks.{}.mlp.gate_up.gate",
        LAYER + "feed_forward.w3": "blocks.{}.mlp.gate_up.up",
        LAYER + "feed_forward.w2": "blocks.{}.mlp.down",
        "model.norm": "norm",
        "output": "head",
    }

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """A key and value head is stored after the query heads that share it."""
        queries = spec.heads // spec.kv_heads
        return Names(cls.names, {QKV: HeadGroups(queries, spec.head_dim)})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the bias of attention under its own name."""
        fields = Fields(raw)
        fields.ignore("attn_implementation")
        return super().read_config(layered({"attention_bias": fields.flag("bias")}, raw))


class InternLM3(Llama):
    """InternLM 3; heads have 128 dimensions unless head_dim says otherwise."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Rejects biases, whose places transformers and the model's own code disagree on."""
        Fields(raw).require_unset("qkv_bias", "bias", "attention_bias", "mlp_bias")
        return super().read_config(layered(raw, {"head_dim": 128, "rms_norm_eps": 1e-5}))
