"""Qwen3.5 and 3.6, dense, text: one layer of four has attention, the others Gated DeltaNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormKind,
    NormSpec,
    ProjectionOrder,
    Specification,
    layered,
    read_decoder,
    read_gated,
    read_hybrid_attention,
    read_residual,
    read_text_config,
)
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES, VISION, Decoder, with_images

LINEAR, PATH = "model.layers.{}.linear_attn", "blocks.{}.attention"
DELTA_NET_NAMES = {
    LINEAR: PATH,
    LINEAR + ".conv1d": PATH + ".convolution",
    LINEAR + ".norm": PATH + ".norm",
    LINEAR + ".out_proj": PATH + ".output",
}


class Qwen35Text(Decoder):
    """Qwen3.5 and 3.6, dense. Weights of multi-token prediction are not used."""

    names: ClassVar[Mapping[str, str]] = {
        **LLAMA_NAMES,
        **QK_NORM_NAMES,
        **DELTA_NET_NAMES,
        LINEAR + ".in_proj_qkv": PATH + ".inputs",
        LINEAR + ".in_proj_z": PATH + ".inputs.gate",
        LINEAR + ".in_proj_b": PATH + ".head_inputs.strength",
        LINEAR + ".in_proj_a": PATH + ".head_inputs.decay",
    }
    ignored: tuple[str, ...] = (r"mtp\..*",)
    order = ProjectionOrder.BY_KIND

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"head_dim": 256}))
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
        mixers = read_hybrid_attention(fields, cls.order)
        mlps = cls.mlps(fields, len(mixers))
        specs = [LayerSpec(*layer) for layer in zip(mixers, mlps, strict=True)]
        fields.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "intermediate_size")
        return read_decoder(fields, specs, read_residual(fields, norm=norm))

    @classmethod
    def mlps(cls, fields: Fields, layers: int) -> list[MlpSpec | MoeSpec]:
        """Returns the feed-forward layer of each layer."""
        return [read_gated(fields, "intermediate_size")] * layers


class Qwen35(Qwen35Text):
    """The text part of checkpoints with images, which requests cannot contain."""

    names: ClassVar[Mapping[str, str]] = with_images(Qwen35Text.names)
    ignored: tuple[str, ...] = (*Qwen35Text.ignored, *VISION)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
