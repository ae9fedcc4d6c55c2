"""GLM-5-next: Kimi Delta Attention, sparse latent attention to pools, streams that are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, Specification
from penstock.models.decoder import VISION, with_images
from penstock.models.deepseek_v32 import DeepseekV32
from penstock.models.glm5_next_config import read_glm5_next
from penstock.models.kimi_linear import DELTA_NAMES, PATH, SELF, KimiLinear

LAYER = "model.layers.{}."
POOLS = {
    f"{SELF}.indexer.index_kpool_compress_gate": f"{PATH}.indexer.gate",
    f"{SELF}.indexer.index_kpool_compress_ape": f"{PATH}.indexer.offsets",
}
CONNECTIONS = {
    f"{LAYER}hc_{theirs}_{name}": f"blocks.{{}}.{ours}_streams.logits.{part}"
    for theirs, ours in (("attn", "attention"), ("ffn", "mlp"))
    for name, part in (("fn", "matrix"), ("base", "base"), ("scale", "scale"))
}
PARTS = "layers", "embed_tokens", "norm"


class Glm5Next(KimiLinear):
    """The text part of GLM-5.3-Flash; requests cannot contain images."""

    names: ClassVar[Mapping[str, str]] = with_images(
        {**DeepseekV32.names, **POOLS, **CONNECTIONS},
    )
    delta_names: ClassVar[Mapping[str, str]] = with_images(DELTA_NAMES)
    # Of checkpoints without images.
    older: ClassVar[Mapping[str, str]] = {
        f"model.{part}.": f"model.language_model.{part}." for part in PARTS
    }
    ignored = (*VISION, r"model\.language_model\.layers\.\d+\.shared_head\..*")
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`; in files without it, its fields are beside the others."""
        if raw.get("text_config") is not None:
            return read_glm5_next(config.read_text_config(raw))
        Fields(raw).ignore("vision_config")
        return read_glm5_next(raw)
