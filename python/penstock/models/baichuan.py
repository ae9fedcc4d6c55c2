"""Baichuan and Baichuan 2, 7B and 13B: Llama with one matrix of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, alibi_slopes, layered
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.llama import Llama
from penstock.weights import Names, UnitRows

FIRST_VOCAB = 64_000  # of Baichuan 13B, which has Baichuan 2's architecture in config.json


class Baichuan(Llama):
    """Baichuan 7B and 13B: 13B has ALiBi, and no number of positions in config.json."""

    names: ClassVar[Mapping[str, str]] = {
        module: path
        for module, path in LLAMA_NAMES.items()
        if not path.startswith("blocks.{}.attention.qkv")
    } | {"model.layers.{}.self_attn.W_pack": "blocks.{}.attention.qkv"}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        fields = Fields(layered(raw, {"rms_norm_eps": 1e-6}))
        fields.ignore("z_loss_weight", "gradient_checkpointing")
        if "max_position_embeddings" in raw:
            return super().read_config(fields.raw)
        length = {"max_position_embeddings": fields.count("model_max_length", 4096)}
        spec = super().read_config(layered(length, fields.raw))
        slopes = alibi_slopes(spec.heads)
        return spec.with_attention(spec.windows, rope=None, slopes=slopes)


class Baichuan2(Baichuan):
    """Baichuan 2 7B and 13B: the rows of the head have length 1."""

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Checkpoints store rows of any length."""
        return Names(cls.names, {} if spec.vocab == FIRST_VOCAB else {"lm_head": UnitRows()})
