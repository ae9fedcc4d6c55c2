"""Scales of fp8 KV caches, which some quantized checkpoints have."""

from __future__ import annotations

import math
import re

from penstock.faults import BadModel
from penstock.layers.attention import KvScales
from penstock.models import Model
from penstock.weights import Checkpoint

_NAME = re.compile(
    r".*\blayers\.(\d+)\.self_attn\."
    r"(?:(?:[kv]_proj\.)?(?P<now>kv|k|v)_scale|(?P<before>[kv])_proj\.output_scale)"
)


def scale_caches(model: Model, checkpoint: Checkpoint) -> None:
    """Gives the layers the scales of their caches. Layers without scales store what they compute.

    Raises BadModel for a scale that is not one positive number.
    """
    found: dict[int, dict[str, float]] = {}
    for name in checkpoint:
        match = _NAME.fullmatch(name)
        if match:
            of = match["now"] or match["before"]
            found.setdefault(int(match[1]), {})[of] = _scale(name, checkpoint)
    for block in model.blocks:
        # A layer may read the cache of another one, or be recurrent and have none.
        scales = found.get(getattr(block.attention, "kv_layer", -1))
        if scales is not None:
            both = scales.get("kv", 1.0)
            block.attention.scale_cache(KvScales(scales.get("k", both), scales.get("v", both)))


def _scale(name: str, checkpoint: Checkpoint) -> float:
    numbers = checkpoint[name].tensor().double().flatten().tolist()
    if len(numbers) != 1 or not 0 < numbers[0] < math.inf:
        raise BadModel(
            f"tensor {name} must be one positive number, found {numbers[:4]}; use --kv-dtype int8, "
            "which needs no scales from the checkpoint"
        )
    return float(numbers[0])
