"""DeepSeek-V4: attention to compressed entries, mixed residual streams, experts by token id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from penstock.config import MoeSpec, Specification
from penstock.layers import Build, HashStreamBlock, StreamBlock
from penstock.layers.attention import StepContext
from penstock.models import deepseek_v4_config
from penstock.models.decoder import Decoder
from penstock.models.deepseek_v4_names import NAMES, OLDER


class DeepseekV4(Decoder):
    """Flash and Pro."""

    names = NAMES
    older = OLDER
    ignored = (r"(model\.)?mtp\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        return deepseek_v4_config.read_config(raw)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> StreamBlock:
        """Builds layer `index`."""
        moe = spec.layers[index].mlp
        hashes = isinstance(moe, MoeSpec) and moe.router.tokens
        return (HashStreamBlock if hashes else StreamBlock)(spec, build, index)

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """As `Decoder.forward`; some routers read the ids."""
        return super().forward(ids, replace(context, token_ids=ids), rows, embeddings)
