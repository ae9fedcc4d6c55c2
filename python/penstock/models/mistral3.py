"""The text part of Mistral's checkpoints with images, which requests cannot contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification, read_text_config
from penstock.faults import Unsupported
from penstock.models.decoder import Decoder
from penstock.models.llama import Mistral
from penstock.models.ministral import Ministral3
from penstock.models.mistral4 import Mistral4
from penstock.weights import Shapes

FAMILIES: dict[str, type[Mistral] | type[Mistral4]] = {
    "mistral": Mistral,
    "ministral3": Ministral3,
    "mistral4": Mistral4,
}


class Mistral3(Decoder):
    """Mistral Small 3.1 to 4, and Ministral 3. Names of Mistral Small 4 include the others'."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{module}": path for module, path in Mistral4.names.items()
    }
    ignored: tuple[str, ...] = (r"vision_tower\..*", r"multi_modal_projector\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config` by the family that it names. Raises BadModel."""
        text = read_text_config(raw)
        kind = text.get("model_type", "mistral")
        if kind not in FAMILIES:
            raise Unsupported(f"config.json: text_config.model_type {kind!r} is not supported")
        return FAMILIES[kind].read_config(text)

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how Mistral Small 4's experts are stored."""
        return Mistral4.as_stored(spec, shapes)
