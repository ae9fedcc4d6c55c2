"""Several residual streams in place of one, as data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.fields import Fields
from penstock.faults import BadModel


@dataclass(frozen=True)
class StreamsSpec:
    """Residual streams of a token (hyper-connections). A layer reads a weighted sum of them, and
    adds its output to each, times a weight of that stream. Both weights follow from all streams.
    Norms are as in PRE."""

    count: int
    factor: float
    """Of the sigmoids that are the weights of outputs."""
    least: float
    """What is added to each weight."""


@dataclass(frozen=True)
class SinkhornSpec:
    """As StreamsSpec, but before a layer's output is added, each stream becomes a weighted sum of
    all. These weights form a doubly stochastic matrix, made by the algorithm of Sinkhorn and Knopp
    (mHC, arXiv:2512.24880). The weights of outputs are sigmoids times 2."""

    count: int
    rounds: int
    """How often columns are divided by their sums; rows are one time less."""
    least: float
    """What is added to the weights that a layer reads with, and to elements of the matrix before
    the first round, and to sums that divide."""
    averaged: bool
    """Whether the streams end in their mean, not in a weighted sum."""


@dataclass(frozen=True)
class GatedStreamsSpec:
    """Residual streams of a token, each with a norm of its own (Qwen4-Exp). A layer reads the mean
    of the normalised streams times gates per element, and adds its output to each stream, times a
    weight. There are no other norms of the streams."""

    count: int
    rank: int
    """Elements between the two matrices that yield the gates."""


@dataclass(frozen=True)
class AltUpSpec:
    """Several residual streams: each layer computes one and predicts the others (Gemma 3n). Beside
    attention is a layer of low rank."""

    count: int
    active: int
    """The stream that layers compute."""
    scaled: bool
    """Whether learned factors scale the stream that embeddings per layer read."""
    laurel_rank: int
    """Of the layer beside attention."""


@dataclass(frozen=True)
class DepthSpec:
    """Streams that are sums of the outputs of consecutive layers, the embedding the first one. What
    a layer reads is attention over them and the sum that is not complete yet (block attention
    residuals, arXiv:2603.15031)."""

    layers: int
    """Of a stream."""


def read_streams(fields: Fields) -> StreamsSpec:
    """The streams, as Hunyuan 4 spells them. Raises BadModel for weights below 0."""
    factor = fields.positive("hc_magnitude", 2.0)
    return StreamsSpec(fields.count("hc_mult", 4), factor, _least(fields))


def read_sinkhorn(fields: Fields, averaged: bool) -> SinkhornSpec:
    """Streams that are mixed, as DeepSeek-V4 and GLM-5-next spell them. Raises BadModel for weights
    below 0. `averaged`: whether they end in their mean."""
    count, rounds = fields.count("hc_mult", 4), fields.count("hc_sinkhorn_iters", 20)
    return SinkhornSpec(count, rounds, _least(fields), averaged)


def _least(fields: Fields) -> float:
    least = fields.number("hc_eps", 1e-6)
    if least < 0:
        raise BadModel(f"config.json: hc_eps must be at least 0, found {least!r}")
    return least


def read_gated_streams(fields: Fields) -> GatedStreamsSpec:
    """The streams, as Qwen4-Exp spells them. Raises BadModel for a single one."""
    count = fields.count("hc_count", 4)
    if count < 2:
        raise BadModel(f"config.json: hc_count must be at least 2, found {count}")
    return GatedStreamsSpec(count, fields.count("hc_lowrank", 320))


def read_altup(fields: Fields) -> AltUpSpec:
    """The residual streams of Gemma 3n, and the rank of its layer beside attention."""
    streams, active = fields.count("altup_num_inputs"), int(fields.number("altup_active_idx"))
    if not 0 <= active < streams:
        raise BadModel(f"config.json: altup_active_idx {active} is none of {streams} streams")
    scaled, rank = fields.flag("altup_correct_scale"), fields.count("laurel_rank")
    return AltUpSpec(streams, active, scaled, rank)
