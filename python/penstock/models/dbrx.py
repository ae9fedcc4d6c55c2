"""DBRX: experts in every layer, LayerNorm without bias, bounds of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import ExpertStorage, Fields, LayerSpec, MlpSpec, MoeSpec, Specification
from penstock.faults import BadModel
from penstock.models.decoder import Decoder

LAYER, THETA = "transformer.blocks.{}.", "rope_theta"
EXPERTS = "blocks.{}.mlp.experts."
TOP_K = "moe_top_k"


class Dbrx(Decoder):
    """DBRX 132B-A36B."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        LAYER + "norm_attn_norm.norm_1": "blocks.{}.attention_norm",
        LAYER + "norm_attn_norm.attn.Wqkv": "blocks.{}.attention.qkv",
        LAYER + "norm_attn_norm.attn.out_proj": "blocks.{}.attention.out",
        LAYER + "norm_attn_norm.norm_2": "blocks.{}.mlp_norm",
        LAYER + "ffn.router.layer": "blocks.{}.mlp.router",
        LAYER + "ffn.experts.mlp.w1": EXPERTS + "gate.weight",
        LAYER + "ffn.experts.mlp.v1": EXPERTS + "up.weight",
        LAYER + "ffn.experts.mlp.w2": EXPERTS + "down.weight",
        "transformer.norm_f": "norm",
        "lm_head": "head",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = config.read_gpt_names(config.layered(raw, {"tie_word_embeddings": False}))
        own = _section(raw, "attn_config")
        theta = own.positive(THETA, 10_000.0)
        rope = config.read_rope(fields, theta=theta)
        if own.raw.get(THETA) and rope.theta != theta:
            raise BadModel(f"config.json: {THETA} is {rope.theta:g}, in attn_config {theta:g}")
        kv_heads, clip = own.count("kv_n_heads", 1), own.optional("clip_qkv")
        fields.require("num_key_value_heads", kv_heads)
        attention = config.read_attention(fields, rope, kv_heads=kv_heads, clip=clip)
        moe = _experts(_section(raw, "ffn_config"), fields.count("hidden_size"))
        norm = config.read_layer_norm(fields, "layer_norm_epsilon", bias=False)
        residual = config.read_residual(fields, norm=norm)
        layers = [LayerSpec(attention, moe)] * fields.count("num_hidden_layers")
        return config.read_decoder(fields, layers, residual)


def _section(raw: Mapping[str, Any], name: str) -> Fields:
    return Fields(raw).section(name) if raw.get(name) is not None else Fields({})


def _experts(fields: Fields, hidden: int) -> MoeSpec:
    named = config.Renamed(fields.raw, {TOP_K: config.TOP_K})
    fields = Fields(config.layered(named, fields.raw, {config.TOP_K: 1}))
    fields.require("hidden_size", hidden)
    fields.require("ffn_act_fn", {"name": "silu"})
    fields.require("moe_normalize_expert_weights", 1)
    fields.ignore("moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment")  # of training
    normed = fields.raw.get("moe_normalize_expert_weights", 1) is not None  # null: as they are
    routing = config.read_routing(fields, renormalise=normed)
    expert = MlpSpec(fields.count("ffn_hidden_size", 3584))
    experts = fields.count("moe_num_experts", 4)
    return MoeSpec(experts, expert, routing, storage=ExpertStorage.JOINED, top_k_field=TOP_K)
