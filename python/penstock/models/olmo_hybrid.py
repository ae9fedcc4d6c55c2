"""OLMo Hybrid: Gated DeltaNet in three of four layers, OLMo 2's attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import FULL, LINEAR, AttentionSpec, Fields, LayerSpec, Placement, Specification
from penstock.layers import Build, block_of
from penstock.models.decoder import QK_NORM_NAMES, Decoder, renamed
from penstock.models.olmo import POST_NORM_NAMES
from penstock.models.olmo_hybrid_config import read_delta_net, read_full
from penstock.weights import Names

LAYER, MIXER, PATH = "model.layers.{}.", "model.layers.{}.linear_attn", "blocks.{}.attention"
# Norms of layers with attention, as transformers writes them, follow what others' precede.
FIRST, SECOND = "attention_layer_norm", "feedforward_layer_norm"
OLDER = {"input_layernorm": FIRST, "post_attention_layernorm": SECOND}
MOST = 256  # layers whose older names are known


class OlmoHybrid(Decoder):
    """OLMo Hybrid 7B."""

    names: ClassVar[Mapping[str, str]] = {
        **renamed({**POST_NORM_NAMES, **QK_NORM_NAMES}, post_attention_layernorm=None),
        LAYER + FIRST: "blocks.{}.attention_norm",
        LAYER + SECOND: "blocks.{}.mlp_norm",
        MIXER: PATH,
        **{f"{MIXER}.{part}_proj": f"{PATH}.inputs.{part}" for part in "qkv"},
        **{f"{MIXER}.{part}_conv1d": f"{PATH}.convolution.{part}" for part in "qkv"},
        MIXER + ".g_proj": PATH + ".inputs.gate",
        MIXER + ".b_proj": PATH + ".head_inputs.strength",
        MIXER + ".a_proj": PATH + ".head_inputs.decay",
        MIXER + ".o_norm": PATH + ".norm",
        MIXER + ".o_proj": PATH + ".output",
    }
    older: ClassVar[Mapping[str, str]] = {
        f"model.layers.{layer}.{old}.": f"model.layers.{layer}.{new}."
        for layer in range(MOST)
        for old, new in OLDER.items()
    }

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Layers of both kinds have a norm of the same name, in different places."""
        full = [
            i for i, layer in enumerate(spec.layers) if isinstance(layer.attention, AttentionSpec)
        ]
        own = {f"model.layers.{i}.{SECOND}": f"blocks.{i}.attention_output_norm" for i in full}
        return Names({**cls.names, **own})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(raw)
        layers = fields.count("num_hidden_layers")
        full, mixer = read_full(fields), read_delta_net(fields)
        default = config.periodic(layers, 4, LINEAR)
        if FULL not in default:
            default[-1] = FULL
        kinds = config.read_hybrid_types(fields, default, LINEAR)
        mlp = config.read_gated(fields, "intermediate_size")
        specs = [LayerSpec(mixer if kind == LINEAR else full, mlp) for kind in kinds]
        return config.read_decoder(fields, specs)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Any:
        """Builds layer `index`: norms follow attention, and precede Gated DeltaNet."""
        if isinstance(spec.layers[index].attention, AttentionSpec):
            spec = replace(spec, residual=replace(spec.residual, placement=Placement.POST))
        return block_of(spec, build, index)
