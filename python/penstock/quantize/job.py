"""Quantizes a checkpoint folder into another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.config import (
    CcaSpec,
    ConvolutionsSpec,
    ExpertStorage,
    MoeSpec,
    Placement,
    Specification,
    read_config,
)
from penstock.faults import BadModel
from penstock.layers import Layer
from penstock.models import family, read_specification
from penstock.models.decoder import Decoder
from penstock.progress import Bar, Unwatched
from penstock.quantize.layouts import Kept
from penstock.quantize.options import Job, Report
from penstock.quantize.output import Output
from penstock.quantize.quantizer import Quantizer
from penstock.quantize.texts import Texts, read_texts
from penstock.quantize.walk import Batch, ModelKind, Walk, Watched
from penstock.weights import Checkpoint


def quantize(job: Job) -> Report:
    """Writes job.out, or goes on where an earlier run of the same settings was stopped.

    Raises a Fault, or OSError for files that cannot be written.
    """
    raw = read_config(job.model)
    with Checkpoint(job.model) as checkpoint, torch.inference_mode():
        kind = _kind(raw, checkpoint)
        length = min(job.options.length, kind.spec.max_positions)
        texts = read_texts(job, length, kind.spec.vocab)
        walk = Walk(kind, length, checkpoint, Watched(*_compute(kind, job.device)))
        scales = torch.float16 if kind.dtype == torch.float32 else kind.dtype
        quantizer = Quantizer(walk, job.options, scales)
        quantizer.check()
        layers = len(walk.model.blocks)
        with Output(job, texts.calibration + texts.measured, layers + 1) as output:
            output.check_space(_size(walk, quantizer.bits()))
            report = _Run(walk, quantizer, output).run(texts)
            rest = {name: checkpoint[name].tensor() for name in walk.outside()}
            output.write(layers, rest, {})
            kept = Kept(walk.kept_modules(), walk.unread_parts())
            config = {**raw, "quantization_config": quantizer.layout.config(kept)}
            summary = {"perplexity_before": report.before, "perplexity_after": report.after}
            settings = {"settings": job.options.stored(), "errors": report.errors}
            output.finish(config, {**summary, **settings})
    return report


class _Run:
    """The layers, one after the other."""

    def __init__(self, walk: Walk, quantizer: Quantizer, output: Output) -> None:
        self.walk, self.quantizer, self.output = walk, quantizer, output
        self.errors: dict[str, float] = {}

    def run(self, texts: Texts) -> Report:
        """Quantizes all layers that are not yet, and measures."""
        walk, layers = self.walk, len(self.walk.model.blocks)
        calibration, exact = walk.enter(texts.calibration), walk.enter(texts.measured)
        rounded = exact
        with Bar("quantizing", layers, "layers", unwatched=Unwatched.LINES) as bar:
            for index in range(layers):
                bar.at(index)
                tensors = walk.layer_tensors(index)
                layer = walk.layer(index, tensors)
                exact = walk.run(layer, index, exact)
                stored = self._stored(index, layer, tensors, calibration)
                del layer  # before the rounded one takes as much memory
                layer = walk.layer(index, self.quantizer.rounded(index, stored))
                calibration = walk.run(layer, index, calibration)
                rounded = walk.run(layer, index, rounded)
            bar.at(layers)
        before, after = (walk.loss(batches, texts.measured) for batches in (exact, rounded))
        return Report(math.exp(before), math.exp(after), self.errors)

    def _stored(
        self, index: int, layer: Layer, tensors: Mapping[str, Tensor], calibration: list[Batch]
    ) -> dict[str, Tensor]:
        found = self.output.read(index)
        if found is None:
            inputs = self.walk.watch(layer, lambda: self.walk.run(layer, index, calibration))
            made = self.quantizer.layer(index, tensors, inputs)
            self.output.write(index, made.tensors, made.errors)
            found = made.tensors, made.errors
        self.errors |= found[1]
        return found[0]


def _kind(raw: Mapping[str, Any], checkpoint: Checkpoint) -> ModelKind:
    if raw.get("quantization_config") or raw.get("compression_config"):
        raise BadModel("the model is quantized already: config.json has a quantization_config")
    cls = family(raw)
    if not issubclass(cls, Decoder):
        raise BadModel(f"penstock quantize does not support {cls.__name__}")
    shapes = {name: checkpoint[name].shape for name in checkpoint}
    spec = cls.as_stored(read_specification(cls, raw), shapes)
    _check_layers(spec)
    if cls.checkpoint_names(spec).forms:
        raise BadModel(f"penstock quantize does not support how {cls.__name__} stores matrices")
    dtypes = {checkpoint[name].dtype for name in checkpoint}
    known = [one for one in (torch.bfloat16, torch.float16, torch.float32) if one in dtypes]
    if not known:
        raise BadModel("the checkpoint has no weights of float32, float16 or bfloat16")
    return ModelKind(cls, spec, known[0])


def _check_layers(spec: Specification) -> None:
    """Raises BadModel for layers that cannot be computed one after the other from their inputs."""
    stores = {layer.mlp.storage for layer in spec.layers if isinstance(layer.mlp, MoeSpec)}
    parts = CcaSpec, ConvolutionsSpec
    convolved = any(isinstance(layer.attention, parts) for layer in spec.layers)
    beside = spec.residual.placement is Placement.BESIDE or convolved
    pairs = spec.residual.placement is Placement.SHORTCUT
    more = spec.per_layer or spec.kv_readers or spec.shares_indexers
    found = {
        "several residual streams (--quantize does)": spec.residual.streams is not None,
        "tensors of all experts at once": stores - {ExpertStorage.SEPARATE},
        "layers that need more than the one before": more,
        "recurrent layers beside attention (--quantize does)": beside,
        "pairs of layers (--quantize does)": pairs,
        "weights of several layers (--quantize does)": any(one.place for one in spec.layers),
    }
    for what, present in found.items():
        if present:
            raise BadModel(f"penstock quantize does not support {what}")


def _compute(kind: ModelKind, device: str) -> tuple[torch.dtype, torch.device]:
    """The dtype of activations, and the device."""
    if device != "cpu":
        return kind.dtype, torch.device(device)
    from penstock import cpu  # not at the top: a GPU needs no extension

    cpu.install()
    return torch.float32, torch.device(device)


def _size(walk: Walk, bits: float) -> int:
    """About how many bytes the files have."""
    total = 0.0
    for name in walk.checkpoint:
        total += math.prod(walk.checkpoint[name].shape) * walk.checkpoint[name].dtype.itemsize
    for index in range(len(walk.model.blocks)):
        for modules in walk.matrices(index).values():
            for module in modules:
                stored = walk.checkpoint[f"{module}.weight"]
                total += math.prod(stored.shape) * (bits / 8 - stored.dtype.itemsize)
    return int(total)
