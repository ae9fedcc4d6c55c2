"""The model on whole texts, one decoder layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.cache import KvGeometry, StateShape, kv_format, layer_shape
from penstock.config import Specification
from penstock.faults import BadModel
from penstock.layers import (
    Build,
    ExpertMlps,
    GatedNorm,
    Layer,
    Linear,
    MoeMlp,
    Residual,
    Router,
    SharedGate,
)
from penstock.layers.attention import Chunks, KvPlaces, StepContext
from penstock.layers.block_indexers import HeadIndexMatrix
from penstock.layers.delta_net import HeadInputs
from penstock.layers.indexed_attention import HeadWeights, IndexMatrix
from penstock.layers.kimi_delta import HeadGates, WholeHeadGates
from penstock.layers.latent_attention import LatentUp
from penstock.layers.mamba1 import Selection
from penstock.layers.rg_lru import BlockGates
from penstock.models.decoder import Decoder
from penstock.parallel import Group
from penstock.quant import Methods, Plain, Weights, WeightTensor
from penstock.quantize.experts import WatchedExperts
from penstock.quantize.statistics import Inputs
from penstock.weights import Checkpoint

FLOATS = (BlockGates, GatedNorm, LatentUp, HeadInputs, HeadGates, Selection, WholeHeadGates)
"""Layers whose matrices servers keep as floats in any format."""
KEPT = (Router, SharedGate, IndexMatrix, HeadIndexMatrix, HeadWeights, *FLOATS)
"""Layers whose matrices stay as they are."""
BLOCK_TOKENS = 16
STEP_TOKENS = 4096  # about as many rows run at once
Tensors = Mapping[str, Tensor]


class Watched(Plain):
    """Plain matrices, allocated layer by layer, whose inputs can be watched. It has no fused ops,
    so every matrix gets its inputs as they are."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device)
        self.watching: dict[int, Inputs] = {}
        """By the id of a layer's weights."""

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix, on the meta device."""
        data = torch.empty((outputs, inputs), dtype=self.dtype, device="meta")
        return {"weight": WeightTensor(data, 0, 1)}

    def finish(self, weights: Weights) -> Weights:
        """Keeps the matrix."""
        return weights

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        inputs = self.watching.get(id(weights))
        if inputs is not None:
            inputs.add(x)
        return F.linear(x, weights["weight"], bias)

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix itself."""
        return weights["weight"]


@dataclass(frozen=True)
class ModelKind:
    """What config.json describes."""

    cls: type[Decoder]
    spec: Specification
    dtype: torch.dtype
    """Of the checkpoint's floats."""


@dataclass(frozen=True)
class Batch:
    """Texts that run at once: hidden states [tokens, hidden], one text after the other."""

    hidden: Tensor
    lengths: tuple[int, ...]


class LayerInputs:
    """The inputs of a decoder layer's matrices, by path. Those of an expert are summed whenever
    they are asked for: the sums of all experts take too much memory."""

    def __init__(self) -> None:
        self.linear: dict[str, Inputs] = {}
        self.experts: dict[str, WatchedExperts] = {}

    def __getitem__(self, path: str) -> Inputs:
        if path in self.linear:
            return self.linear[path]
        experts, number, matrix = path.rsplit(".", 2)
        return self.experts[experts].inputs(f"{number}.{matrix}")


class Walk:
    """A checkpoint's model. Raises BadModel if tensors are missing or do not fit."""

    def __init__(
        self, kind: ModelKind, length: int, checkpoint: Checkpoint, method: Watched
    ) -> None:
        """`length`: tokens of the longest text."""
        spec = self.spec = kind.spec.within(length)
        self.checkpoint, self.method = checkpoint, method
        cls = kind.cls
        checkpoint.renew(cls.older)
        build = Build(method.dtype, method.device, Group(0, 1), Methods(method), length)
        self.model = cls(spec, build)
        self.build = replace(build, names=self.model.tensor_names)
        wanted = self.model.checkpoint_targets()
        self.names = frozenset(wanted)  # of all tensors that the text model reads
        if missing := sorted(wanted.keys() - set(checkpoint)):
            raise BadModel(f"the checkpoint lacks tensors: {', '.join(missing[:5])}")
        for name, targets in wanted.items():
            if not targets[0].accepts(found := tuple(checkpoint[name].shape)):
                raise BadModel(
                    f"tensor {name} has shape {list(found)}, but config.json makes it "
                    f"{list(targets[0].shape)}: they belong to different models"
                )

    def layer_names(self, index: int) -> list[str]:
        """The names of the checkpoint's tensors of decoder layer `index`."""
        targets = self.model.blocks[index].all_targets(f"blocks.{index}")
        return list(self.model.tensor_names.targets(targets))

    def layer_tensors(self, index: int) -> dict[str, Tensor]:
        """These tensors, on the CPU."""
        return {name: self.checkpoint[name].tensor() for name in self.layer_names(index)}

    def layer(self, index: int, tensors: Tensors) -> Layer:
        """Decoder layer `index` with these tensors."""
        block: Layer = self.model.block(self.spec, self.build, index)
        self._fill(block, f"blocks.{index}", tensors)
        return block

    def module(self, index: int, path: str) -> str | None:
        """The checkpoint's module at a path within decoder layer `index`; None if it has none."""
        return self.model.tensor_names.module(f"blocks.{index}.{path}")

    def matrices(self, index: int) -> dict[str, list[str]]:
        """By the path of each linear layer, also of each expert's two, the modules whose matrices
        it multiplies by."""
        found: dict[str, list[str]] = {}
        for path, layer in self.model.blocks[index].walk():
            if not isinstance(layer, Linear | ExpertMlps) or isinstance(layer, KEPT):
                continue
            for name in layer.targets():
                if name.endswith("weight"):
                    parts = name.split(".")[:-1]  # of an expert: number, matrix, perhaps its part
                    own = [path, *parts[:2]] if isinstance(layer, ExpertMlps) else [path]
                    whole = ".".join(["blocks", str(index), path, *parts])
                    module = next(self.model.tensor_names.sources(whole))
                    modules = found.setdefault(".".join(own), [])
                    if module not in modules:
                        modules.append(module)
        return found

    def kept_modules(self) -> list[str]:
        """The modules inside decoder layers whose matrices stay as they are."""
        found: dict[str, None] = {}
        for index, block in enumerate(self.model.blocks):
            for path, layer in block.walk():
                if not isinstance(layer, KEPT):
                    continue
                for name in layer.targets():
                    part = name.rpartition(".")[0]
                    whole = ".".join(filter(None, ["blocks", str(index), path, part]))
                    found[next(self.model.tensor_names.sources(whole))] = None
        return list(found)

    def outside(self) -> list[str]:
        """The names of the checkpoint's tensors outside of decoder layers, read or not."""
        layers = {
            name for index in range(len(self.model.blocks)) for name in self.layer_names(index)
        }
        return sorted(set(self.checkpoint) - layers)

    def unread_parts(self) -> list[str]:
        """The largest modules with matrices that the text model does not read: a vision tower,
        layers of multi-token prediction, a tied head."""
        read = {
            tuple(name.split(".")[:end])
            for name in self.names
            for end in range(name.count(".") + 1)
        }
        found: dict[str, None] = {}
        for name in sorted(set(self.checkpoint) - self.names):
            parts = name.split(".")
            if parts[-1] == "weight" and len(self.checkpoint[name].shape) > 1:
                end = next(end for end in range(len(parts)) if tuple(parts[: end + 1]) not in read)
                found[".".join(parts[: end + 1])] = None
        return list(found)

    def enter(self, texts: Sequence[Sequence[int]]) -> list[Batch]:
        """The embeddings of texts (token ids), with learned rows of their positions, if any."""
        embedding, positions = self.model.embedding, self.model.positions
        self._fill(embedding, "embedding", None)
        if positions is not None:
            self._fill(positions, "positions", None)
        batches, waiting = [], list(texts)
        while waiting:
            chosen = [waiting.pop(0)]
            while waiting and sum(map(len, chosen)) + len(waiting[0]) <= STEP_TOKENS:
                chosen.append(waiting.pop(0))
            lengths = tuple(map(len, chosen))
            ids = torch.tensor([token for text in chosen for token in text])
            hidden = embedding(ids.to(self.method.device))
            if positions is not None:
                hidden += positions(_positions(lengths).to(self.method.device))
            batches.append(Batch(hidden.cpu(), lengths))
        return batches

    def run(self, layer: Layer, index: int, batches: Sequence[Batch]) -> list[Batch]:
        """The hidden states after decoder layer `index`."""
        found = []
        for batch in batches:
            context = self._context(index, batch.lengths)
            hidden = batch.hidden.to(self.method.device)
            after: Residual = layer(Residual(hidden, None, False), context)  # type: ignore[operator]
            total = after.x if after.total is None else after.x + after.total
            found.append(Batch(total.cpu(), batch.lengths))
        return found

    def watch(self, layer: Layer, run: Callable[[], object]) -> LayerInputs:
        """The inputs of each linear layer and expert below `layer`, while it runs."""
        found = LayerInputs()
        mixtures: list[MoeMlp] = []
        for path, one in list(layer.walk()):
            if isinstance(one, Linear) and not isinstance(one, KEPT):
                columns = one.weights["weight"].shape[1]
                found.linear[path] = Inputs(columns, self.method.device)
                self.method.watching[id(one.weights)] = found.linear[path]
            elif isinstance(one, MoeMlp) and isinstance(one.experts, ExpertMlps):
                mixtures.append(one)
                one.experts = found.experts[f"{path}.experts"] = WatchedExperts(one.experts)
        run()
        self.method.watching.clear()
        for mixture, experts in zip(mixtures, found.experts.values(), strict=True):
            mixture.experts = experts.experts
        return found

    def loss(self, batches: Sequence[Batch], texts: Sequence[Sequence[int]]) -> float:
        """The mean negative log-likelihood of texts' tokens, from the last hidden states."""
        assert self.model.norm is not None
        self._fill(self.model.norm, "norm", None)
        if not self.spec.tied:
            self._fill(self.model.head, "head", None)
        total, tokens, waiting = 0.0, 0, list(texts)
        for batch in batches:
            ends = list(accumulate(batch.lengths))
            for end, length in zip(ends, batch.lengths, strict=True):
                hidden = batch.hidden[end - length : end - 1].to(self.method.device)
                normed = self.model.norm(Residual(hidden, None, False))[0]
                labels = torch.tensor(waiting.pop(0)[1:], device=self.method.device)
                logits = self.model.logits(normed).float()
                total += float(F.cross_entropy(logits, labels, reduction="sum"))
                tokens += length - 1
        return total / tokens

    def _fill(self, layer: Layer, path: str, tensors: Tensors | None) -> None:
        for _, one in layer.walk():
            one.prepare()
        for name, targets in self.model.tensor_names.targets(layer.all_targets(path)).items():
            tensor = self.checkpoint[name].tensor() if tensors is None else tensors[name]
            for target in targets:
                target.destination.copy_(target.entries(tensor))
        for _, one in layer.walk():
            one.finish()

    def _context(self, index: int, lengths: Sequence[int]) -> StepContext:
        """Of texts that run from their first token on."""
        device, blocks = self.method.device, [-(-n // BLOCK_TOKENS) for n in lengths]
        starts = [0, *accumulate(blocks)]
        tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        for row, (start, count) in enumerate(zip(starts, blocks, strict=False)):
            tables[row, :count] = torch.arange(start, start + count)
        positions = _positions(lengths)
        slots = torch.cat(
            [torch.arange(n) + s * BLOCK_TOKENS for n, s in zip(lengths, starts, strict=False)]
        )

        def ints(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        chunks = Chunks(
            ints(*range(len(lengths))), ints(0, *accumulate(lengths)), ints(*lengths), max(lengths)
        )
        shape = layer_shape(self.spec.layers[index].attention, 1, self.method.dtype)
        stored = starts[-1]
        if isinstance(shape, StateShape):  # a block is the state of a text
            stored, tables = len(lengths), torch.arange(len(lengths), dtype=torch.int32)[:, None]
        geometry = KvGeometry.of([shape], BLOCK_TOKENS, kv_format("auto", self.method.dtype))
        cache = geometry.allocate([stored] * len(geometry.groups), device).caches[0]
        places = KvPlaces(tables.to(device), slots.int().to(device))
        count = len(self.spec.layers)
        return StepContext(positions.to(device), [places] * count, [cache] * count, None, chunks)


def _positions(lengths: Sequence[int]) -> Tensor:
    """The positions [tokens] of texts, one after the other, int32."""
    return torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
