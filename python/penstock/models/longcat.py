"""LongCat-Flash: pairs of layers with latent attention, and experts that compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    Placement,
    Specification,
    layered,
    read_decoder,
    read_gated,
    read_residual,
)
from penstock.layers import Build
from penstock.models.decoder import CORRECTION_PATH, EXPERT_NAMES, LLAMA_NAMES, Decoder, renamed
from penstock.models.deepseek import DeepseekV3
from penstock.models.longcat_block import ShortcutBlock
from penstock.models.longcat_config import read_experts, read_scaled_attention

LAYER, PATH = "model.layers.{}.", "blocks.{}."
MATRICES = {"gate_proj": "gate_up.gate", "up_proj": "gate_up.up", "down_proj": "down"}
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e7}
PARTS = [part for part in DeepseekV3.names if ".self_attn." in part and ".k_" not in part]


class LongcatFlash(Decoder):
    """LongCat-Flash. Layers of multi-token prediction are not loaded."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in LLAMA_NAMES.items() if ".layers." not in name},
        **renamed(EXPERT_NAMES, gate="router.classifier"),
        LAYER + "mlp.router.e_score_correction_bias": CORRECTION_PATH,
        LAYER + "input_layernorm.{}": PATH + "attention_norms.{}",
        LAYER + "post_attention_layernorm.{}": PATH + "mlp_norms.{}",
        **{
            name.replace("attn.", "attn.{}."): DeepseekV3.names[name].replace(
                "attention.", "attentions.{}."
            )
            for name in PARTS
        },
        **{f"{LAYER}mlps.0.{name}": f"{PATH}mlp.shared.{path}" for name, path in MATRICES.items()},
        **{f"{LAYER}mlps.1.{name}": f"{PATH}last.{path}" for name, path in MATRICES.items()},
    }
    ignored: tuple[str, ...] = (r"model\.mtp\..*",)

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        moe = spec.layers[0].mlp
        assert isinstance(moe, MoeSpec)
        # transformers writes matrices that no token reads.
        numbers = "|".join(str(moe.experts + i) for i in range(moe.identities))
        self.ignored = (*self.ignored, rf"model\.layers\.\d+\.mlp\.experts\.({numbers})\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, SIZES))
        count = fields.count("num_layers")
        fields.require("num_hidden_layers", 2 * count)
        attention, dense = read_scaled_attention(fields), read_gated(fields, "ffn_hidden_size")
        experts = read_experts(fields, dense)
        pair = LayerSpec(attention, experts), LayerSpec(attention, dense)
        residual = read_residual(fields, placement=Placement.SHORTCUT)
        return read_decoder(fields, pair * count, residual)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> ShortcutBlock:
        """Builds a pair of layers."""
        return ShortcutBlock(spec, build, index)
