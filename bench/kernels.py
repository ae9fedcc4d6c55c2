"""Times every kernel on its bench cases, next to what the device can do at most.

    python bench/run.py kernels [OP ...]
    python bench/run.py kernels --energy [OP ...]   # watts, and millijoules of a launch
    python bench/run.py kernels --products   # all linear layers of an 8B model, by weight format

Ceilings are measured first, in the same run: a large copy within the device (bytes read plus bytes
written) for ops that move bytes, a large bf16 matrix product for ops that compute. Each op is
captured in a CUDA graph, so that launches cost what they cost in a server; the L2 cache is flushed
between repeats, and times are medians. `torch` is the nearest operation of torch.

Power limits a GPU that works for seconds, so the energy of a kernel matters even where memory
limits its time. With --energy each case runs for seconds in CUDA graphs over several sets of
arguments. The driver counts the energy, idle power included. The first line is a plain read of
1 GiB: no kernel that reads as many bytes takes less.

--products prints Markdown: the time of the linear layers of 32 decoder layers, and in brackets the
floor (weights and scales read once at the speed of the copy) and the time of cuBLAS with bfloat16
weights, both in percent of that time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import penstock_kernels  # noqa: F401  (registers the ops)
import torch
import torch.nn.functional as F
from harness.energy import Counter, drawn, launches_of, read_bytes
from harness.graphs import captured
from penstock_kernels.case import Case, Size, cases
from penstock_kernels.op import OPS, Op
from penstock_kernels.packed_linear.cases import Problem
from penstock_kernels.packed_linear.cases import product as packed_case
from penstock_kernels.packed_linear.weight import Kind
from torch import Tensor
from triton.testing import do_bench

CUDA = torch.device("cuda")
Arguments = dict[str, Any]


# Outputs and inputs of the linear layers of an 8B model, and whether they are gate and up.
LAYERS = ((6144, 4096, False), (4096, 4096, False), (28672, 4096, True), (4096, 14336, False))
DECODER_LAYERS = 32
# Per kind of weights the inputs that share a scale (0 = all), and whether there are zero points: as
# --quantize int4, eetq and fp8 have them, and mxfp4.
SCALES = {
    Kind.INT4: (128, True),
    Kind.INT8: (0, False),
    Kind.FP8: (0, False),
    Kind.FP4: (32, False),
}
ROWS = (1, 16, 32, 64, 256, 8192)
SETS = 4  # of weights: those of one set may fit the L2 cache


def milliseconds(*functions: Callable[[], object]) -> float:
    """Median time of one call of each, as a replayed CUDA graph."""
    graph = captured(functions)
    return float(do_bench(graph.replay, warmup=10, rep=60, return_mode="median"))


def ceilings() -> tuple[float, float]:
    """(TB/s of a copy, TFLOP/s of a bf16 product) of this device."""
    source = torch.randn(1 << 30, dtype=torch.bfloat16, device=CUDA)
    target = torch.empty_like(source)
    # Not in a graph, where a copy becomes a node for the slower copy engines.
    copying = do_bench(lambda: target.copy_(source), warmup=10, rep=60, return_mode="median")
    copy = 2 * source.numel() * source.element_size() / float(copying)
    side = 8192
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=CUDA) for _ in range(2))
    product = 2 * side**3 / milliseconds(lambda: torch.mm(a, b))
    return copy / 1e9, product / 1e9


def torch_rms_norm(a: Arguments) -> Callable[[], object]:
    def run() -> Tensor:
        total = a["x"] if a["residual"] is None else a["x"] + a["residual"]
        return F.rms_norm(total, a["weight"].shape, a["weight"], a["eps"])

    return run


def torch_act_mul(a: Arguments) -> Callable[[], object]:
    gate, up = a["x"].chunk(2, dim=-1)
    if a["activation"] == "silu":
        return lambda: F.silu(gate) * up
    kind = "tanh" if a["activation"] == "gelu_tanh" else "none"
    return lambda: F.gelu(gate, approximate=kind) * up


def torch_copy_blocks(a: Arguments) -> Callable[[], object]:
    def run() -> None:
        a["kv_cache"][a["destinations"]] = a["kv_cache"][a["sources"]]

    return run


def torch_prefill(a: Arguments) -> Callable[[], object] | None:
    """torch's attention on contiguous tensors; only for whole prompts of one length."""
    sequences, heads, size = len(a["kv_len"]), a["q"].shape[1], a["q"].shape[2]
    length = a["max_query"]
    if a["window"] or len(a["q"]) != sequences * length or int(a["kv_len"].max()) != length:
        return None
    shape = (3, sequences, heads, length, size)
    q, k, v = torch.randn(shape, dtype=a["q"].dtype, device=CUDA).unbind(0)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_sample(a: Arguments) -> Callable[[], object]:
    temperature = a["temperature"][a["slots"]]
    if not bool((temperature > 0).any()):
        return lambda: a["logits"].argmax(-1)
    temperature = temperature[:, None].clamp(min=0.01)  # greedy rows: as good as cold ones
    return lambda: (a["logits"].float() / temperature).softmax(-1).multinomial(1)


def torch_linear(a: Arguments) -> Callable[[], object]:
    return lambda: F.linear(a["x"], a["weight"], a["bias"])


def torch_norm_linear(a: Arguments) -> Callable[[], object]:
    def run() -> Tensor:
        total = a["x"] + a["residual"]
        out = F.linear(F.rms_norm(total, a["scale"].shape, a["scale"], a["eps"]), a["weight"])
        gate, up = out.chunk(2, dim=-1)
        return F.silu(gate) * up if a["gated"] else out

    return run


TORCH: dict[str, Callable[[Arguments], Callable[[], object] | None]] = {
    "rms_norm": torch_rms_norm,
    "act_mul": torch_act_mul,
    "copy_blocks": torch_copy_blocks,
    "paged_prefill_attention": torch_prefill,
    "sample": torch_sample,
    "linear": torch_linear,
    "norm_linear": torch_norm_linear,
}


def row(op: Op[..., Any], case: Case, copy: float, product: float) -> str:
    """One line of the table."""
    arguments = case.make(CUDA)
    time = milliseconds(lambda: op.triton(**arguments))
    if case.operations:
        rate, unit, ceiling = case.operations / time / 1e9, "TFLOP/s", product
    else:
        rate, unit, ceiling = case.bytes_moved / time / 1e9, "TB/s", copy
    rival = TORCH[op.name](arguments) if op.name in TORCH else None
    beside = f"{1e3 * milliseconds(rival):10.1f}" if rival else " " * 9 + "-"
    share = f"{100 * rate / ceiling:5.1f} %"
    return f"{op.name:24} {case.name:52} {1e3 * time:10.1f} {beside} {rate:8.2f} {unit:8} {share}"


def arguments() -> argparse.Namespace:
    """Options; `cases`: pairs of an op and a bench case of it, of the ops named or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"of {', '.join(OPS)}; all if none")
    parser.add_argument("--energy", action="store_true", help="watts and joules instead of times")
    parser.add_argument("--products", action="store_true", help="layers of an 8B model by format")
    parser.add_argument("--seconds", type=float, default=1.2, help="of each case, with --energy")
    options = parser.parse_args()
    if unknown := set(options.ops) - set(OPS):
        parser.error(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    ops = [OPS[name] for name in options.ops or OPS]
    options.cases = [(op, case) for op in ops for case in cases(op) if case.size is Size.BENCH]
    return options


def times(options: argparse.Namespace) -> None:
    """Prints the table of times."""
    copy, product = ceilings()
    print(f"{torch.cuda.get_device_name()}: copy {copy:.2f} TB/s, bf16 {product:.0f} TFLOP/s")
    print(f"{'op':24} {'case':52} {'us':>10} {'torch us':>10} {'rate':>8} {'':8} of ceiling")
    for op, case in options.cases:
        print(row(op, case, copy, product), flush=True)
        torch.cuda.empty_cache()


def products(options: argparse.Namespace) -> None:
    """Prints the table of the linear layers of a model."""
    copy, product = ceilings()
    print(f"{torch.cuda.get_device_name()}: copy {copy:.2f} TB/s, bf16 {product:.0f} TFLOP/s\n")
    print("| rows | cuBLAS bf16 | " + " | ".join(kind.value for kind in SCALES) + " |")
    print("|---" * (2 + len(SCALES)) + "|")
    scale = DECODER_LAYERS / SETS
    for rows in ROWS:
        plain = scale * milliseconds(*plain_products(rows))
        cells = [f"{plain:.2f}"]
        for kind in SCALES:
            torch.cuda.empty_cache()
            functions, moved = packed_products(kind, rows)
            time = scale * milliseconds(*functions)
            floor = scale * moved / copy / 1e9
            cells.append(f"{time:.2f} ({100 * floor / time:.0f} %, {100 * plain / time:.0f} %)")
        print(f"| {rows:,} | {' | '.join(cells)} |", flush=True)


def plain_products(rows: int) -> list[Callable[[], object]]:
    """The products of SETS decoder layers with bfloat16 weights, without activations."""
    made: list[Callable[[], object]] = []
    for outputs, inputs, _ in LAYERS * SETS:
        x = torch.randn(rows, inputs, dtype=torch.bfloat16, device=CUDA)
        weight = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=CUDA)
        made.append(partial(F.linear, x, weight))
    return made


def packed_products(kind: Kind, rows: int) -> tuple[list[Callable[[], object]], int]:
    """Likewise with quantized weights, and the bytes of these and their scales."""
    (group, zeros), op, moved = SCALES[kind], OPS["packed_linear"], 0
    made: list[Callable[[], object]] = []
    for outputs, inputs, gated in LAYERS * SETS:
        problem = Problem(rows, outputs, inputs, group, zeros, gated=gated)
        arguments = packed_case(kind, problem).make(CUDA)
        weight = arguments["weight"]
        parts = (weight.words, weight.scales, weight.zeros)
        moved += sum(part.nbytes for part in parts if part is not None)
        made.append(partial(op.triton, **arguments))
    return made, moved


def energy(options: argparse.Namespace) -> None:
    """Prints the table of power and energy."""
    counter = Counter()
    print(torch.cuda.get_device_name())
    with torch.inference_mode():
        print(f"{drawn(counter, read_bytes(), options.seconds)}  a read of 1 GiB", flush=True)
        for op, case in options.cases:
            found = drawn(counter, launches_of(op, case), options.seconds)
            print(f"{found}  {op.name} {case.name}", flush=True)
            torch.cuda.empty_cache()


def main() -> int:
    options = arguments()
    if not torch.cuda.is_available():
        print("bench/kernels.py times CUDA kernels, and torch sees no CUDA device here.")
        return 1
    torch.manual_seed(0)
    table = products if options.products else energy if options.energy else times
    table(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
