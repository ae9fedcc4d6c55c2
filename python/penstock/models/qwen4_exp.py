"""Qwen4-Exp, text: Qwen3.5's layers, residual streams, a choice of blocks, hashed n-grams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from penstock.config import (
    Fields,
    NormKind,
    NormSpec,
    Specification,
    layered,
    read_decoder,
    read_gated_streams,
    read_residual,
    read_text_config,
)
from penstock.layers import Build
from penstock.layers.attention import StepContext
from penstock.models.decoder import VISION, with_images
from penstock.models.qwen4_exp_block import NAMES, STORED_HASHES, Qwen4ExpBlock
from penstock.models.qwen4_exp_config import ROPE, SIZES, read_layers
from penstock.models.qwen_hybrid_moe import Qwen35MoeText


class Qwen4ExpText(Qwen35MoeText):
    """Every layer has experts. Some layers follow a block of n-grams."""

    names: ClassVar[Mapping[str, str]] = {**Qwen35MoeText.names, **NAMES}
    ignored = (*Qwen35MoeText.ignored, STORED_HASHES)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, SIZES, ROPE))
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
        streams = read_gated_streams(fields)
        mlps = cls.mlps(fields, fields.count("num_hidden_layers"))
        layers = read_layers(fields, norm, streams.count, mlps)
        residual = read_residual(fields, norm=norm, streams=streams)
        fields.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "intermediate_size")
        fields.ignore("number_of_conv_states")  # of a cache of transformers
        return read_decoder(fields, layers, residual)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Qwen4ExpBlock:
        """Builds block `index`."""
        return Qwen4ExpBlock(spec, build, index)

    @staticmethod
    def last_norm(spec: Specification, build: Build) -> None:
        """The mix of the streams is normalised."""

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """As `Decoder.forward`; n-grams belong to the ids, whatever the embeddings."""
        return super().forward(ids, replace(context, ids=ids), rows, embeddings)


class Qwen4Exp(Qwen4ExpText):
    """The text part of checkpoints with images, which requests cannot contain."""

    names: ClassVar[Mapping[str, str]] = with_images(Qwen4ExpText.names)
    ignored = (*Qwen4ExpText.ignored, *VISION)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
