"""MiniMax-M3, text: each KV head chooses blocks of tokens; experts have the gates of gpt-oss's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import ExpertStorage, Specification, read_text_config
from penstock.models.decoder import (
    CORRECTION_PATH,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
)
from penstock.models.minimax_m3_config import read_minimax_m3
from penstock.models.mixtral import MOE, MOE_NAMES
from penstock.models.qwen_hybrid_moe import STACKED_NAMES

LAYER, MLP = "model.layers.{}.", "blocks.{}.mlp."
INDEXER = {"q_proj": "matrix.queries", "k_proj": "matrix.key"}
INDEXER |= {"q_norm": "query_norm", "k_norm": "key_norm"}


def index_names(prefix: str) -> dict[str, str]:
    """The indexer's names, which begin with `prefix` in a layer's attention."""
    return {
        f"{LAYER}self_attn.{prefix}{name}": f"blocks.{{}}.attention.indexer.{path}"
        for name, path in INDEXER.items()
    }


class MiniMaxM3Text(Decoder):
    """The text model alone, as transformers writes it: gates and ups are one matrix, and a tensor
    holds all experts."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in LLAMA_NAMES.items() if ".gate_up." not in path},
        **QK_NORM_NAMES,
        **index_names("indexer."),
        **STACKED_NAMES,
        LAYER + "mlp.gate_up_proj": MLP + "gate_up",
        LAYER + "mlp.gate": MLP + "router",
        LAYER + "mlp.shared_experts.gate_up_proj": MLP + "shared.gate_up",
        LAYER + "mlp.shared_experts.down_proj": MLP + "shared.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_minimax_m3(raw).with_experts(storage=ExpertStorage.STACKED)


class MiniMaxM3(Decoder):
    """The text part of published checkpoints; requests cannot contain images."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{name}": path
        for name, path in {
            **LLAMA_NAMES,
            **QK_NORM_NAMES,
            **index_names("index_"),
            **MOE_NAMES,
            MOE + "e_score_correction_bias": CORRECTION_PATH,
            **{
                name.replace(LAYER + "mlp.", MOE): path
                for name, path in SHARED_EXPERT_NAMES.items()
            },
        }.items()
    }
    ignored = (r"(vision_tower|multi_modal_projector|patch_merge_mlp)\..*", r"(.*\.)?mtp\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return read_minimax_m3(read_text_config(raw))
