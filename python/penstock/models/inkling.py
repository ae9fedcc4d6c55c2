"""Inkling, text: biases by distance, short convolutions, shared experts that the router weighs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    ExpertStorage,
    NormSpec,
    Specification,
    read_decoder,
    read_residual,
    read_text_config,
)
from penstock.layers import Build, ConvolvedBlock
from penstock.models.decoder import Decoder
from penstock.models.inkling_config import read_layers
from penstock.models.inkling_fields import in_newer_fields
from penstock.models.inkling_names import ALTERNATING, NAMES, PUBLISHED, WITH_SPARE_ROWS
from penstock.weights import Alternating, FirstRows, Form, Names


class InklingText(Decoder):
    """As transformers writes the text model alone."""

    names: ClassVar[Mapping[str, str]] = NAMES
    storage: ClassVar[ExpertStorage] = ExpertStorage.STACKED

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Embedding and head may have rows of no token; published gates and ups alternate."""
        forms: dict[str, Form] = dict.fromkeys(WITH_SPARE_ROWS, FirstRows())
        return Names(cls.names, {**forms, ALTERNATING: Alternating()})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = in_newer_fields(raw)
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
        padded = fields.count("vocab_size")
        return read_decoder(
            fields,
            read_layers(fields, norm, cls.storage),
            read_residual(fields, norm=norm),
            vocab=min(fields.count("unpadded_vocab_size", padded), padded),
            tied=False,
            embedding_eps=norm.eps,
            embedding_weight=True,
            logits_scale=1 / fields.positive("logits_mup_width_multiplier", 24.0),
        )

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> ConvolvedBlock:
        """Builds block `index`."""
        return ConvolvedBlock(spec, build, index)


class Inkling(InklingText):
    """The text part of published checkpoints; requests cannot contain images or sound."""

    names: ClassVar[Mapping[str, str]] = PUBLISHED
    storage: ClassVar[ExpertStorage] = ExpertStorage.ALTERNATING
    ignored: tuple[str, ...] = (r"model\.(audio|visual|mtp)\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`. Raises BadModel."""
        return super().read_config(read_text_config(raw))
