"""DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import AttentionSpec, Fields, Specification, layered
from penstock.layers import Build
from penstock.models.deepseek import ATTENTION, SELF, DeepseekV3
from penstock.models.glm4_moe_lite import Glm4MoeLite


class DeepseekV32(Glm4MoeLite):
    """DeepSeek-V3.2: DeepSeek-V3 with an indexer in every layer."""

    dense, eps = 3, 1e-6
    defaults: ClassVar[Mapping[str, int | float]] = {
        "index_n_heads": 64,
        "n_group": 8,
        "topk_group": 4,
    }
    names: ClassVar[Mapping[str, str]] = {
        **DeepseekV3.names,
        SELF + "indexer.wq_b": ATTENTION + "indexer.queries",
        SELF + "indexer.wk": ATTENTION + "indexer.key",
        SELF + "indexer.k_norm": ATTENTION + "indexer.key_norm",
        SELF + "indexer.weights_proj": ATTENTION + "indexer.head_weights",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, and refuses those that it does not know. Raises BadModel."""
        common = {"index_head_dim": 128, "index_topk": 2048, "routed_scaling_factor": 2.5}
        return super().read_config(layered(raw, cls.defaults, common))

    @staticmethod
    def attention(fields: Fields) -> AttentionSpec:
        """Reads the attention of all layers."""
        return config.read_indexed_attention(fields, interleaved=False)


class GlmMoeDsa(DeepseekV32):
    """GLM-5: layers may take the choice of an earlier layer."""

    eps = 1e-5
    defaults: ClassVar[Mapping[str, int | float]] = {"index_n_heads": 32}

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        # Files may have indexers that no layer runs.
        unused = [i for i, block in enumerate(self.blocks) if block.attention.indexer is None]
        numbers = "|".join(map(str, unused))
        self.ignored = (*self.ignored, rf"model\.layers\.({numbers})\.self_attn\.indexer\..*")

    @staticmethod
    def attention(fields: Fields) -> AttentionSpec:
        """Reads the attention of all layers."""
        return config.read_indexed_attention(fields, interleaved=True)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Also reads which layers have an indexer."""
        spec = super().read_config(raw)
        shared = config.read_shared_indexers(Fields(raw), len(spec.layers))
        layers = config.with_shared_indexers(spec.layers, shared)
        return replace(spec, layers=tuple(layers))
