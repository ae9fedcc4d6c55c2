"""Zamba2: layers of Mamba-2, some with a transformer before them whose weights others share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from penstock.config import Specification
from penstock.layers import Build, Place, SharedTransformer
from penstock.layers.attention import StepContext
from penstock.models.decoder import Decoder
from penstock.models.zamba2_config import read_zamba2
from penstock.models.zamba_block import ZambaBlock
from penstock.models.zamba_names import MAMBA, SHARED, Modules, first_places, names_of, places_of
from penstock.weights import Names

MODULES = Modules(
    "shared_transformer",
    {**MAMBA, "mamba.norm": "attention.norm"},
    {**SHARED, "feed_forward.gate_up_proj": "gate_up"},
)


class Zamba2(Decoder):
    """Zamba2 1.2B, 2.7B and 7B. A layer of the checkpoint with a transformer is two here."""

    modules: ClassVar[Modules] = MODULES

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        build = replace(build, names=self.tensor_names)
        stream, firsts, places = spec.residual, first_places(spec), places_of(spec)
        layer = next(one for one in spec.layers if one.place)  # those of all places are alike
        self.shared = [
            SharedTransformer(build.below(f"shared.{number}"), stream, layer)
            for number in range(len(firsts))
        ]
        for index, place in places.items():
            below, at = build.below(f"blocks.{index}.place"), spec.block_layers[index] - 1
            shared = self.shared[place.weights]
            self.blocks[index].place = Place(below, stream, spec.layers[at], at, shared)
        # Some files have the weights at each place.
        again = "|".join(str(index) for index in places.keys() - firsts.values())
        copies = rf"model\.layers\.({again or '-'})\.{self.modules.transformer}\..*"
        self.ignored = (*self.ignored, copies)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_zamba2(raw)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The first place of a transformer has its weights, and the adapters of all places."""
        return Names(names_of(spec, cls.modules))

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> ZambaBlock:
        """Builds block `index`."""
        return ZambaBlock(spec, build, index)

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """As `Decoder.forward`; transformers read the embeddings again."""
        if embeddings is None:
            embeddings = self.embedding.group.summed(self.embedding(ids))
        context = replace(context, embeddings=embeddings)
        # Layers may write to the memory of the stream.
        return super().forward(ids, context, rows, embeddings.clone())
