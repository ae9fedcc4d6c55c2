"""CUDA graphs of launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


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
