"""Sums over ranks through memory that they share, with residual and normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import expect
from ..rms_norm import NormInput
from .plan import CHANNELS, EMPTY, WORD, Peers, Plan, memory_bytes, most_joined, most_rows, rule

__all__ = [
    "EMPTY",
    "Peers",
    "Plan",
    "joins",
    "memory_bytes",
    "peer_join",
    "peer_sum",
    "probe",
    "rule",
    "takes",
]
KINDS = (torch.bfloat16, torch.float16, torch.float32)


def probe(device: torch.device) -> None:
    """Launches the kernel with one rank. Raises if it cannot be built on this machine."""
    from .triton import launch_join

    nobody = torch.zeros(1, dtype=torch.int64, device=device)
    turns = torch.zeros(CHANNELS, dtype=torch.int32, device=device)
    x = torch.zeros((1, 1), device=device)
    launch_join(x, torch.empty_like(x), Peers(0, 1, nobody, turns))


def takes(x: Tensor, ranks: int) -> bool:
    """Whether rows like those of x [T, H] can be summed here. The same on all ranks."""
    row_bytes = x.shape[1] * x.itemsize
    if x.dtype not in KINDS or not row_bytes or row_bytes % WORD:
        return False
    return most_rows(rule(len(x), row_bytes, ranks), row_bytes // WORD, ranks) > 0


def joins(x: Tensor, ranks: int) -> bool:
    """Whether columns like those of x [T, C] can be joined here. The same on all ranks."""
    row_bytes = x.shape[1] * x.itemsize
    # Half a number of float64 may well be EMPTY, and would be waited for.
    if x.dtype not in KINDS or not row_bytes or row_bytes % WORD:
        return False
    return most_joined(row_bytes // WORD, ranks) > 0


def peer_join(x: Tensor, peers: Peers) -> Tensor:
    """x [T, C] of all ranks side by side: [T, ranks * C], new and contiguous, in order of rank.

    A collective like `peer_sum`, on tensors that suit `joins`. Of numbers that are none, two
    patterns of bits become one.
    Bytes moved: T C elements to each other rank.
    """
    from .triton import launch_join

    x = x.contiguous()
    rows, columns = x.shape
    out = x.new_empty((rows, peers.ranks * columns))
    most = most_joined(columns * x.itemsize // WORD, peers.ranks)
    for first in range(0, rows, most):
        part = slice(first, min(first + most, rows))
        launch_join(x[part], out[part], peers)
    return out


def peer_sum(
    norm_input: NormInput, peers: Peers, plan: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """(y, total): total = the sum of all ranks' x, and the residual; y = rms_norm(total) * scale.

    A collective on CUDA: every rank calls it at the same place with tensors of the same shapes, and
    its own x; residual, scale and eps are the same on all. All ranks get the same bits.

    Args: `norm_input` as for `rms_norm`, x [T, H] as `takes` wants it; `plan`, or the rule chooses.
    Returns: both [T, H], new and contiguous.
    Precision: float32 inside, ranks in their order and then the residual; total is rounded once,
        and normalised as rounded.
    Bytes moved: T H elements to each other rank, or twice as many spread over all of them; in this
        rank's memory some six times T H.
    Source: the protocol in `triton`; that data can be its own flag, from the Lamport buffers of
        TensorRT-LLM's all-reduce.
    """
    from .triton import launch  # CPU machines never need it

    x, residual = norm_input.x.contiguous(), norm_input.residual
    expect("scale", norm_input.scale, (x.shape[1],), (x.dtype,))
    norm_input = norm_input._replace(
        x=x, residual=None if residual is None else residual.contiguous()
    )
    rows, row_bytes = len(x), x.shape[1] * x.itemsize
    normed, total = torch.empty_like(x), torch.empty_like(x)
    plan = plan or rule(rows, row_bytes, peers.ranks)
    most = most_rows(plan, row_bytes // WORD, peers.ranks)
    for first in range(0, rows, most):
        part = slice(first, min(first + most, rows))
        piece = norm_input._replace(
            x=x[part], residual=None if norm_input.residual is None else norm_input.residual[part]
        )
        launch(piece, peers, plan, (normed[part], total[part]))
    return normed, total
