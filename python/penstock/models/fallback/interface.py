"""Penstock's paged attention behind transformers' attention interface.

transformers calls a registered function instead of its own attention when a model's
`attn_implementation` names it. Two names are registered. With `PAGED`, transformers makes no masks:
the kernels know each row's sequence and position. With `PROBED`, it calls a function for its masks
too, so that a probing pass learns what each layer sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.faults import BadModel
from penstock.layers.attention import KvScales, StepContext, attend
from penstock.models.fallback.heads import Heads

PAGED, PROBED = "penstock", "penstock_probed"
LAYER = "penstock_layer"  # the attribute of an attention module that holds its PagedLayer

Record = Callable[..., Tensor]
_record: ContextVar[Record | None] = ContextVar("record", default=None)
Mask = Callable[..., Tensor]  # (batch, head, query position, key position) -> bool


class Step:
    """The step that is running; all layers of a model share it."""

    def __init__(self) -> None:
        self.context: StepContext | None = None

    @contextmanager
    def of(self, context: StepContext | None) -> Iterator[None]:
        """Runs a forward pass of this step. None: no token sees another one, and none is stored."""
        self.context = context
        try:
            yield
        finally:
            self.context = None


@dataclass(eq=False)
class PagedLayer:
    """The parameters of one layer's attention kernels (`AttentionShape`), and its calls.

    Made by `Fallback`. Keys and values are narrower than the cache if they differ in width, or if
    their width is odd; zeros fill the rest.
    """

    index: int
    scale: float
    window: int
    softcap: float
    width: int
    """Elements of a head in the cache."""
    heads: Heads
    cos_sin: Tensor
    """Of no rotation: the module has rotated queries and keys."""
    step: Step
    sinks: Tensor | None = None
    """Of this rank's heads: copied from the module's argument at the first call; weights do not
    change."""
    kv_scales: KvScales | None = None
    aligned: bool = False
    """Masks of chunks are refused."""
    slopes: Tensor | None = None
    """ALiBi is refused."""

    @property
    def kind(self) -> tuple[int, float]:
        """Layers of equal kind launch the same kernels."""
        return self.window, self.softcap

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """q [1, heads, T, D], k [1, kv_heads, T, D], v [1, kv_heads, T, E] -> [1, T, heads, E]."""
        if self.step.context is None:  # the first passes
            given, expected = (q.shape[1], k.shape[1]), self.heads.given
            if given != expected:
                raise BadModel(
                    f"this rank has {given[0]} query heads and {given[1]} KV heads of layer "
                    f"{self.index}, not {expected[0]} and {expected[1]}; leave --tp out"
                )
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).transpose(1, 2).contiguous()
        if self.sinks is None and sinks is not None:
            self.sinks = self.heads.own_queries(sinks.detach(), 0).float().contiguous()
        q, k, v = self.heads.own(q, k, v)
        rows = self._rows
        mixed = attend(rows(q), rows(k), rows(v), self, self.step.context)
        return self.heads.joined(mixed[..., : v.shape[-1]])[None].contiguous()

    def _rows(self, x: Tensor) -> Tensor:
        """[1, heads, T, D] -> [T, heads, width], a view if a token's heads are side by side."""
        if x.shape[-1] != self.width:
            x = F.pad(x, (0, self.width - x.shape[-1]))
        rows = x[0].transpose(0, 1)
        return rows if rows.stride()[1:] == (self.width, 1) else rows.contiguous()


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """The registered function. Returns ([1, T, heads, D], no weights)."""
    record = _record.get()
    if record is not None:
        return record(module, (query, key, value), attention_mask, arguments), None
    layer: PagedLayer = getattr(module, LAYER)
    return layer(query, key, value, arguments.get("s_aux")), None


@contextmanager
def recorded(record: Record) -> Iterator[None]:
    """Inside this context, `record` stands in for attention."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


def register() -> None:
    """Registers both names. Repeated calls change nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PAGED, attention)
    AttentionInterface.register(PROBED, attention)
    AttentionMaskInterface.register(PROBED, _describe_mask)


def _describe_mask(
    *_: object,
    mask_function: Mask,
    batch_size: int,
    q_length: int,
    kv_length: int,
    device: torch.device,
    **__: object,
) -> Tensor:
    """Stands in for a mask: a tensor that knows what the mask shows."""
    mask = torch.empty((batch_size, 1, q_length, kv_length), device=device)
    mask.penstock_mask = mask_function  # type: ignore[attr-defined]
    return mask


def window_of(mask: Tensor | None, positions: int) -> int:
    """Returns the window of a mask from a probing pass, in tokens; 0 = every earlier token.

    Raises BadModel if some query of a sequence of `positions` tokens sees anything else.
    """
    if mask is None:
        raise BadModel("its attention gets no mask, so what it sees is not known")
    function = getattr(mask, "penstock_mask", None)
    if function is None:
        raise BadModel("its attention adds a mask of its own (ALiBi or another bias)")
    windows = {0}
    keys = torch.arange(positions)
    zero = torch.zeros_like(keys)
    # The last query sees the whole window; the others tell a window from a chunk.
    for query in {positions - 1, max(positions - 2, 0), positions // 2, positions // 3, 0}:
        seen = function(zero, zero, torch.full_like(keys, query), keys).expand(positions)
        count = int(seen.sum())
        if not torch.equal(seen, (keys <= query) & (keys > query - count)):
            raise BadModel("its mask is neither causal nor a sliding window")
        windows.add(count if count <= query else 0)
    if len(windows) > 2:
        raise BadModel("its mask is neither causal nor a sliding window of one size")
    return max(windows)
