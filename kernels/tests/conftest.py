"""Fixtures of the kernel tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
POISON = {torch.int64: -(1 << 60), torch.int32: -(1 << 30)}


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills what `torch.empty` returns with NaN, or absurd integers: unwritten output shows."""

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate_and_fill(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(POISON.get(tensor.dtype, torch.nan))

        return allocate_and_fill

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


@pytest.fixture(autouse=True)
def freed_device_memory() -> Iterator[None]:
    """Gives cached memory back to the device after each test: test processes share one GPU."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture(autouse=INTERPRETED)
def language_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter replaces the functions of its language in each call of a function by a
    kernel, though they are replaced until the kernel ends; that took four tenths of its time."""
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    replaced: set[int] = set()

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc]
        """Of a kernel: only these are restored."""

        def restore(self) -> None:
            super().restore()
            replaced.clear()

    def replace_once(function: Any) -> Scope:
        module = id(function.__globals__)
        if module in replaced:
            return Scope()
        replaced.add(module)
        scope: Scope = replace(function)
        return scope

    monkeypatch.setattr(interpreter, "_LangPatchScope", Scope)
    monkeypatch.setattr(interpreter, "_patch_lang", replace_once)


@pytest.fixture(autouse=INTERPRETED)
def one_element_arrays_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets loops run to a scalar: Triton 3.6 takes int() of its array, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


@pytest.fixture(autouse=INTERPRETED)
def rounding_as_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converts float32 by torch: Triton's interpreter loses the carry where it rounds to fp8, and
    cuts off bits to bfloat16."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    kinds = {
        tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
        tl.float8e5: (torch.float8_e5m2, torch.uint8),
        tl.bfloat16: (torch.bfloat16, torch.uint16),
    }

    def rounded(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target not in kinds:
            return convert(data, source, target, rounding)
        kind, bits = kinds[target]
        return torch.tensor(data).to(kind).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


@pytest.fixture(autouse=INTERPRETED)
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widens bfloat16 before products: Triton's interpreter would multiply its bits as integers."""
    import triton.language as tl
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        wide = torch.from_numpy(operand.data.copy()).view(torch.bfloat16).float().numpy()
        return interpreter.TensorHandle(wide, tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
