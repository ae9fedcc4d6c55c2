"""Baichuan 7B and Baichuan 2 7B: Llama with one matrix of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered
from penstock.faults import Unsupported
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.llama import Llama
from penstock.weights import Names, UnitRows


class Baichuan(Llama):
    """Baichuan 7B."""

    names: ClassVar[Mapping[str, str]] = {
        module: path
        for module, path in LLAMA_NAMES.items()
        if not path.startswith("blocks.{}.attention.qkv")
    } | {"model.layers.{}.self_attn.W_pack": "blocks.{}.attention.qkv"}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Refuses the 13B models, which have ALiBi. Raises BadModel."""
        fields = Fields(layered(raw, {"rms_norm_eps": 1e-6}))
        if "max_position_embeddings" not in raw:
            raise Unsupported(
                "config.json has no max_position_embeddings: positions by ALiBi, as Baichuan 13B "
                "has them, are not supported"
            )
        fields.ignore("model_max_length", "z_loss_weight", "gradient_checkpointing")
        return super().read_config(fields.raw)


class Baichuan2(Baichuan):
    """Baichuan 2 7B: the rows of the head have length 1."""

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Checkpoints store rows of any length."""
        return Names(cls.names, {"lm_head": UnitRows()})
