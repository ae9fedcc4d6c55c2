"""Times the experts of a few tokens as a step runs them: layer after layer, in one CUDA graph.

    python bench/run.py experts [--tokens N ...]

Of one token, layers choose different experts; of more, each token chooses at random. A layer's time
is the graph's, divided. Bytes are codes or numbers and scales of all experts that a layer chooses,
in percent of what a large copy moves in that time.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
from harness.graphs import captured, copy_bandwidth
from penstock_kernels import expert_mlp
from penstock_kernels.case import cases
from penstock_kernels.expert_mlp import Experts
from penstock_kernels.op import OPS
from penstock_kernels.route_experts import Routed
from torch import Tensor
from triton.testing import do_bench

CUDA = torch.device("cuda")
LAYERS = 16
# Mixtral 8x7B, Qwen3 30B-A3B, the same with blocks of 128 x 128 in fp8, gpt-oss 20b.
NAMES = (
    "bf16-1-of8-top2-4096x14336",
    "bf16-1-of128-top8-2048x768",
    "fp8-1-of128-top8-2048x768-g128",
    "fp4-1-of32-top4-2880x2880-clamped_swiglu-g32-bias",
)


def routings(tokens: int, top_k: int, count: int) -> list[Routed]:
    """What LAYERS layers of `count` experts choose."""
    drawn = torch.Generator().manual_seed(tokens)
    order, found = torch.randperm(count, generator=drawn), []
    for layer in range(LAYERS):
        ids = order[(layer * top_k + torch.arange(top_k)) % count][None]
        if tokens > 1:
            ids = torch.rand(tokens, count, generator=drawn).topk(top_k).indices
        weights = torch.rand(tokens, top_k, generator=drawn)
        found.append(Routed(ids.int().to(CUDA), weights.to(CUDA)))
    return found


def bytes_of(experts: Experts) -> int:
    """Of one expert."""
    tensors: list[Tensor] = []
    for matrices in (experts.gate_up, experts.down):
        parts = (matrices,) if isinstance(matrices, Tensor) else (matrices.words, matrices.scales)
        tensors += parts
    return sum(tensor[0].nbytes for tensor in tensors)


def line(name: str, experts: Experts, x: Tensor, top_k: int, bandwidth: float) -> str:
    """One line of the table."""
    layers = routings(len(x), top_k, experts.count)
    read = sum(len(routed.ids.unique()) for routed in layers) * bytes_of(experts)
    graph = captured([partial(expert_mlp, x, routed, experts) for routed in layers])
    time = float(do_bench(graph.replay, warmup=20, rep=100, return_mode="median")) / 1e3
    share = 100 * read / time / bandwidth
    return f"{name:52} {len(x):6} {1e6 * time / LAYERS:10.1f} us {share:8.1f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 32])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench/experts.py times CUDA kernels, and torch sees no CUDA device here.")
        return 1
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s")
    made = {case.name: case for case in cases(OPS["expert_mlp"])}
    for name in NAMES:
        arguments = made[name].make(CUDA)
        experts, top_k = arguments["experts"], arguments["routed"].ids.shape[1]
        for tokens in options.tokens:
            x = torch.randn(tokens, arguments["x"].shape[1], dtype=torch.bfloat16, device=CUDA)
            print(line(name, experts, x, top_k, bandwidth), flush=True)
        del arguments, experts
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
