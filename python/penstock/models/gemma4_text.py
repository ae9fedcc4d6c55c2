"""Gemma 4: per-layer shapes, KV caches that layers share, embeddings per layer, experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from penstock.config import Specification
from penstock.layers import Build, Layer, PerLayerEmbeddings
from penstock.layers.attention import StepContext
from penstock.models.decoder import QK_NORM_NAMES, Decoder
from penstock.models.gemma2 import Gemma2
from penstock.models.gemma4_block import BLOCK_NAMES, EXPERT_NAMES, Gemma4Block
from penstock.models.gemma4_config import read_gemma4
from penstock.weights import Names


class Gemma4Text(Decoder):
    """The text models."""

    names: ClassVar[Mapping[str, str]] = {**Gemma2.names, **QK_NORM_NAMES, **BLOCK_NAMES}
    module = "model"  # which holds the text model in checkpoints
    defaults: ClassVar[Mapping[str, Any]] = {"hidden_size_per_layer_input": 256}

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        self.per_layer = None if spec.per_layer is None else PerLayerEmbeddings(build, spec)
        unread = "|".join(
            map(str, spec.kv_readers)
        )  # some checkpoints have projections that nothing reads
        if unread:
            own = (
                rf"{self.module}\.layers\.({unread})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*"
            )
            self.ignored = (*self.ignored, own)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        return read_gemma4(raw, cls.defaults)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The names, of layers with experts or without."""
        names = {**cls.names, **(EXPERT_NAMES if spec.has_experts else {})}
        return Names({re.sub(r"^model\b", cls.module, name): path for name, path in names.items()})

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Layer:
        """Builds layer `index`."""
        return Gemma4Block(spec, build, index)

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """As `Decoder.forward`; rows of each layer belong to the ids, whatever the embeddings."""
        if self.per_layer is not None:
            if embeddings is None:
                embeddings = self.embedding.group.summed(self.embedding(ids))
            context = replace(context, layer_rows=self.per_layer(ids, embeddings))
        return super().forward(ids, context, rows, embeddings)
