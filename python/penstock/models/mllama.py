"""The text part of Llama 3.2 Vision: without an image, the layers that attend to one pass on what
they get, so they are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered, read_text_config
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.llama import Llama
from penstock.weights import FirstRows, Names

EMBEDDING = "language_model.model.embed_tokens"
SPARE_ROWS = 8  # of the embedding, behind those of the vocabulary: of the token of an image
CROSS = "cross_attention_layers"


class Mllama(Llama):
    """Llama 3.2 11B and 90B Vision."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{module}": path for module, path in LLAMA_NAMES.items()
    }
    ignored: tuple[str, ...] = (r"vision_model\..*", r"multi_modal_projector\..*")

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        own = "|".join(map(str, spec.layer_numbers))
        self.ignored = (*self.ignored, rf"language_model\.model\.layers\.(?!({own})\.).*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config` without the layers that attend to images. Raises BadModel."""
        text = read_text_config(raw)
        count, cross = Fields(text).count("num_hidden_layers"), text.get(CROSS)
        if not isinstance(cross, list) or not set(cross) < set(range(count)):
            raise BadModel(
                f"config.json: {CROSS} must list some of {count} layers, found {cross!r}"
            )
        numbers = tuple(layer for layer in range(count) if layer not in cross)
        spec = super().read_config(layered({"num_hidden_layers": len(numbers)}, text))
        return replace(spec, layer_numbers=numbers)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Layers keep the numbers that they have among all."""
        places = list(enumerate(spec.layer_numbers))
        numbered = {
            module.format(number): path.format(place)
            for module, path in cls.names.items()
            for place, number in (places if "{}" in module else [(0, 0)])
        }
        return Names(numbered, {EMBEDDING: FirstRows(SPARE_ROWS)})
