"""Zamba2: layers of Mamba-2, some with a transformer before them whose weights others share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from penstock.config import Specification
from penstock.layers import Build, Place, SharedTransformer
from penstock.layers.attention import StepContext
from penstock.models.decoder import Decoder
from penstock.models.zamba2_block import Zamba2Block
from penstock.models.zamba2_config import read_zamba2
from penstock.models.zamba2_names import first_places, names_of, places_of
from penstock.weights import Names


class Zamba2(Decoder):
    """Zamba2 1.2B, 2.7B and 7B. A layer of the checkpoint with a transformer is two here."""

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
        self.ignored = (*self.ignored, rf"model\.layers\.({again or '-'})\.shared_transformer\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_zamba2(raw)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The first place of a transformer has its weights, and the adapters of all places."""
        return Names(names_of(spec))

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Zamba2Block:
        """Builds block `index`."""
        return Zamba2Block(spec, build, index)

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
