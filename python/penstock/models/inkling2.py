"""Inkling 2, text: attention over depth, bounds in the place of norms, softly capped experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    DepthSpec,
    NormSpec,
    Specification,
    read_decoder,
    read_residual,
    read_text_config,
)
from penstock.layers import Build, DepthBlock
from penstock.models.decoder import Decoder
from penstock.models.inkling2_config import read_layers
from penstock.models.inkling2_fields import in_newer_fields
from penstock.models.inkling2_names import NAMES, SCALES, WITH_SPARE_ROWS, of_layers
from penstock.weights import FirstRows, Form, Names


class Inkling2Text(Decoder):
    """The text model alone."""

    names: ClassVar[Mapping[str, str]] = NAMES
    expert_scales: ClassVar[str] = SCALES

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Embedding and head may have rows of no token; layers without windows have more parts."""
        forms: dict[str, Form] = dict.fromkeys(WITH_SPARE_ROWS, FirstRows())
        return Names({**cls.names, **of_layers(spec)}, forms)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = in_newer_fields(raw)
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
        padded = fields.count("vocab_size")
        depth = DepthSpec(fields.count("n_layers_per_attn_res_block"))
        return read_decoder(
            fields,
            read_layers(fields, norm),
            read_residual(fields, norm=norm, streams=depth),
            vocab=min(fields.count("unpadded_vocab_size"), padded),
            tied=False,
            embedding_eps=norm.eps,
            embedding_weight=True,
            logits_softcap=fields.positive("final_logit_softcapping", 30.0),
        )

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> DepthBlock:
        """Builds block `index`."""
        return DepthBlock(spec, build, index)


class Inkling2(Inkling2Text):
    """The text part of published checkpoints; requests cannot contain images."""

    ignored: tuple[str, ...] = (r"model\.(visual|mtp)\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`. Raises BadModel."""
        return super().read_config(read_text_config(raw))
