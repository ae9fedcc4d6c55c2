"""Reads hashed n-grams from config.json, as Qwen4-Exp spells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.config.attention_spec import NormSpec
from penstock.config.fields import Fields
from penstock.config.recurrent_spec import NgramSpec
from penstock.faults import BadModel

IDS = (1 << 24) - 2  # a state has ids in float32, from 1 on
# Fields that change nothing where no layer has n-grams.
DETAILS = (
    *("ple_embed_dim", "ngram_size", "heads_per_ngram", "ple_conv_kernel_size", "seed"),
    *("ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "split_ngram_parts"),
)


def read_ngrams(
    fields: Fields, norm: NormSpec, streams: int, recurrent: Sequence[bool]
) -> dict[int, NgramSpec]:
    """The n-grams before each layer that has any, by the layer's number; config.json counts from 1.
    `recurrent`: which layers have linear attention. Raises BadModel."""
    listed = fields.raw.get("ple_layer_ids") or []
    numbers = dict(enumerate(recurrent, 1))
    if not isinstance(listed, list) or not all(numbers.get(number) for number in listed):
        raise BadModel(
            "config.json: ple_layer_ids must list layers with linear attention, the first being "
            f"1, found {listed!r}"
        )
    if not listed:
        fields.ignore(*DETAILS)
        return {}
    first, ordinals = _read_first(fields, norm, streams), enumerate(sorted(set(listed)))
    return {number - 1: replace(first, ordinal=ordinal) for ordinal, number in ordinals}


def _read_first(fields: Fields, norm: NormSpec, streams: int) -> NgramSpec:
    fields.require_at_most("vocab_size", IDS)
    hidden, end = fields.count("hidden_size"), fields.raw.get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    return NgramSpec(
        size=fields.count("ple_embed_dim", hidden),
        order=fields.count("ngram_size", 3),
        hashes=fields.count("heads_per_ngram", 8),
        width=fields.count("ple_conv_kernel_size", 4),
        channels=streams * hidden,
        base=fields.count("ngram_vocab_size_base", 20_000_000),
        divisor=fields.count("make_ngram_vocab_size_divisible_by", 128),
        parts=fields.count("split_ngram_parts", 512),
        seed=int(fields.number("seed", 1234)),
        end=int(Fields({"eos_token_id": end}).number("eos_token_id")),
        norm=norm,
        ordinal=0,
    )
