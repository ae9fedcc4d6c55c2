"""The CPU backend: kernels of the extension in place of the ops' references.

They take float32 and bfloat16, with float32 inside; other dtypes keep the references.
"""

from __future__ import annotations

import torch
from penstock_kernels.op import OPS
from torch import Tensor

from penstock._core import cpu
from penstock.cpu.ops import KERNELS

DTYPES = (torch.float32, torch.bfloat16)


def install() -> bool:
    """Makes the ops use these kernels for CPU tensors; False if this CPU lacks instructions."""
    if not cpu.fast():
        return False
    for kernel in KERNELS:
        OPS[kernel.__name__].provide(DTYPES, kernel)
    return True


def pack(matrix: Tensor) -> Tensor:
    """[outputs, inputs] to `linear`'s panels; bfloat16 if that holds every number exactly."""
    short = matrix.to(torch.bfloat16)
    stored = short if torch.equal(short.to(matrix.dtype), matrix) else matrix
    outputs, inputs = matrix.shape
    panels = torch.empty((-(-outputs // 16), inputs, 16), dtype=stored.dtype)
    cpu.pack(stored.contiguous(), panels)
    return panels


def linear(x: Tensor, panels: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
    """x W^T + b [T, outputs] for a packed W. A row does not depend on its neighbours."""
    out = torch.empty((len(x), outputs), dtype=x.dtype)
    cpu.linear(x, panels, bias, out, torch.get_num_threads())
    return out
