"""Ling 3.0: Kimi Linear's layers, with bounded decays and gated heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification
from penstock.models.bailing_hybrid_config import read_bailing_hybrid
from penstock.models.decoder import (
    EXPERT_NAMES,
    LATENT_NAMES,
    LLAMA_NAMES,
    SHARED_EXPERT_NAMES,
)
from penstock.models.kimi_linear import DELTA_NAMES, PATH, SELF, KimiLinear


class BailingHybrid(KimiLinear):
    """Ling 3.0 Flash."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | LATENT_NAMES | EXPERT_NAMES | SHARED_EXPERT_NAMES),
        SELF + ".g_proj": PATH + ".qkv.gate",
    }
    delta_names: ClassVar[Mapping[str, str]] = {
        **DELTA_NAMES,
        SELF + ".f_proj": PATH + ".head_gates.decay",
        SELF + ".g_proj": PATH + ".head_gates.gate",
    }
    # Of published checkpoints.
    older: ClassVar[Mapping[str, str]] = {
        ".attention.dense.": ".self_attn.o_proj.",
        ".attention.": ".self_attn.",
        "model.word_embeddings.": "model.embed_tokens.",
        ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
    }
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_bailing_hybrid(raw)
