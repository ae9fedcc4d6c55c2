"""CodeGen: GPT-J, whose queries, values and keys are one matrix, stored in four blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification
from penstock.faults import BadModel
from penstock.models.decoder import renamed
from penstock.models.gptj import LAYER, GptJ
from penstock.weights import BlocksOfHeads, Names

QKV = LAYER + "attn.qkv_proj"
BLOCKS = 4  # of the cores that trained the model


class CodeGen(GptJ):
    """CodeGen 350M to 16B; CodeGen 2.5 is a Llama."""

    names: ClassVar[Mapping[str, str]] = {
        **renamed(GptJ.names, q_proj=None, k_proj=None, v_proj=None),
        QKV: "blocks.{}.attention.qkv",
    }
    ignored = (r"transformer\.h\.\d+\.attn\.(masked_bias|causal_mask)",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads GPT-J's fields. Raises BadModel."""
        spec = super().read_config(raw)
        if spec.heads % BLOCKS:
            raise BadModel(
                f"config.json: n_head is {spec.heads}, not a multiple of {BLOCKS}, the blocks in "
                "which queries, values and keys are stored"
            )
        return spec

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Each block has its share of all queries, then of values, then of keys."""
        return Names(cls.names, {QKV: BlocksOfHeads(BLOCKS)})
