"""Runs the layers of tiny models as a GPU's warm-up does: kernels are compiled, not launched.

    python compile_only.py CASE ...    # on a machine without a GPU; nothing is compiled either

What a kernel would have written holds anything then. A layer that takes it for a place reads or
writes outside of a tensor, which ends a worker on a GPU; here it is an IndexError or RuntimeError.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from absent import Absent
from checkpoints import checkpoint_maker
from local import LocalWorker
from penstock.worker.run.runner import Runner
from penstock.worker.startup.warmup import captured_shapes
from penstock_kernels import device
from penstock_kernels.op import use
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

ANYTHING = 1 << 30
EVERY = 9  # of the steps: of decodes, and with prompts of few and of many tokens


def loaded(folder: Path, case: str) -> Runner:
    """A worker's runner."""
    worker = LocalWorker()
    worker.load(checkpoint_maker(folder)(case), dtype="bfloat16", max_slots=20)
    return worker.runner


def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns `make`, whose tensors hold the worst that memory may have."""

    def made(*args: Any, **options: Any) -> Tensor:
        tensor = make(*args, **options)
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        wide = tensor.dtype in (torch.int32, torch.int64)
        return tensor.fill_(ANYTHING) if wide else tensor

    return made


def rehearse(runner: Runner) -> int:
    """Runs the forward pass of some of the steps that a worker captures; returns how many."""
    shapes = captured_shapes(runner.state.limits)[::EVERY]
    for shape in shapes:
        runner.warmup_stages(shape).forward()
    return len(shapes)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runners = {case: loaded(Path(folder), case) for case in sys.argv[1:]}
    driver.set_active(Absent())
    kernel = SimpleNamespace(metadata=SimpleNamespace(shared=0))
    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    with (
        mock.patch.object(JITFunction, "_do_compile", lambda *_, **__: kernel),
        mock.patch.object(JITFunction, "run", compiled),
        mock.patch.object(device, "processors", lambda _: 132),
        mock.patch.object(torch, "empty", filled(torch.empty)),
        mock.patch.object(torch, "empty_like", filled(torch.empty_like)),
        mock.patch.object(Tensor, "new_empty", filled(Tensor.new_empty)),
        torch.inference_mode(),
        use("triton"),
    ):
        for case, runner in runners.items():
            sys.stdout.write(f"{case}: {rehearse(runner)} steps\n")


if __name__ == "__main__":
    main()
