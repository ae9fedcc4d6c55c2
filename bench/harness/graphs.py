"""CUDA graphs of launches, and the copy bandwidth that their times are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from triton.testing import do_bench


def captured(launches: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """A graph of all launches, one after another."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()  # arguments are made on another stream
    with torch.cuda.stream(stream):
        for launch in (*launches, *launches):
            launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
    torch.cuda.synchronize()
    return graph


def copy_bandwidth() -> float:
    """Bytes per second of a large copy, read and written."""
    source = torch.randn(1 << 30, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    time_ms = float(do_bench(lambda: target.copy_(source), return_mode="median"))
    return 2 * source.numel() * source.element_size() / time_ms * 1e3
