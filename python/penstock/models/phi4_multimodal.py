"""The text part of Phi-4-multimodal: Phi-4 mini, whose matrices images and speech adapt by LoRA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered
from penstock.models.phi3 import Phi3

# transformers' defaults that are not Phi-3's.
SIZES = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
# What describes images and speech, in transformers' files and in those that were published first.
OTHERS = "audio_config", "vision_config", "audio_processor", "img_processor", "embd_layer"
ADAPTERS = "speech_lora", "vision_lora"
ADAPTED = "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"


class Phi4Multimodal(Phi3):
    """Phi-4-multimodal. Text is computed without adapters; they lie beside the matrices in the
    files that were published first, and in files of their own in transformers'."""

    older: ClassVar[Mapping[str, str]] = {
        f".{matrix}.base_layer.weight": f".{matrix}.weight" for matrix in ADAPTED
    }
    ignored = (r"model\.embed_tokens_extend\..*", r"model\.layers\..*\.lora_[AB]\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads Phi-3's fields. Raises BadModel."""
        fields = Fields(layered(raw, SIZES))
        fields.ignore(*OTHERS, *ADAPTERS)
        return super().read_config(fields.raw)
