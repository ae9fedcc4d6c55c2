"""Dots3-Note: latent attention of two sizes, with an indexer or a window, and a gate per head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, read_text_config
from penstock.models.decoder import Decoder
from penstock.models.deepseek import ATTENTION, SELF
from penstock.models.deepseek_v32 import DeepseekV32
from penstock.models.dots3_config import read_dots3

PARTS = "layers", "embed_tokens", "norm"
# Beside the text's fields, where these are at the top of config.json.
OTHERS = ("vision_config", "audio_config")


class Dots3(Decoder):
    """Dots3-Note, and the text part of checkpoints with images and audio, which requests cannot
    contain."""

    names: ClassVar[Mapping[str, str]] = {
        **DeepseekV32.names,
        SELF + "g_proj": ATTENTION + "qkv.gate",
        SELF + "k_rope_only_layernorm": ATTENTION + "rotated_norm",
    }
    older: ClassVar[Mapping[str, str]] = {
        f"model.language_model.{part}.": f"model.{part}." for part in PARTS
    }
    ignored: tuple[str, ...] = (
        r"(model\.)?(vision|audio)_(encoder|tower|adapter)\..*",
        r"model\.(language_model\.)?mtp\..*",
    )
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields of text: of `text_config`, or beside those of images and audio. Raises
        BadModel."""
        if raw.get("text_config") is not None:
            return read_dots3(read_text_config(raw))
        Fields(raw).ignore(*OTHERS)
        return read_dots3(raw)
