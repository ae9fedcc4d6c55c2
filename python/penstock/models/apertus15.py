"""Apertus 1.5: Apertus, whose head may lack the last tokens, those of images and audio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered, read_text_config
from penstock.faults import BadModel
from penstock.models.apertus import Apertus
from penstock.models.decoder import with_images
from penstock.weights import FirstRows, Names

EMBEDDING = "model.embed_tokens"
WITH_SPARE_ROWS = (EMBEDDING, *with_images({EMBEDDING: ""}))


class Apertus15Text(Apertus):
    """The text model alone."""

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The embedding may have more rows than the head."""
        return Names(cls.names, dict.fromkeys(WITH_SPARE_ROWS, FirstRows()))

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the number of tokens that the head has. Raises BadModel."""
        fields = Fields(raw)
        rows = fields.count("vocab_size")
        tokens = fields.count("output_vocab_size", rows)
        if tokens > rows:
            raise BadModel(
                f"config.json: output_vocab_size is {tokens}, more than vocab_size, which is {rows}"
            )
        return super().read_config(layered({"vocab_size": tokens}, raw))


class Apertus15(Apertus15Text):
    """The text part of published checkpoints; requests cannot contain images or audio."""

    names: ClassVar[Mapping[str, str]] = with_images(Apertus.names)
    ignored: tuple[str, ...] = (*Apertus.ignored, r"model\.(vision|audio)_tokenizer\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`. Raises BadModel."""
        return super().read_config(read_text_config(raw))
