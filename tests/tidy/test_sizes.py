"""House numbers: small functions, small files, few arguments.

Rust's function length and argument count are clippy's (clippy.toml); its file length is ours.
"""

from __future__ import annotations

import statistics

import pytest
import tree

FUNCTION_LINES = 60
KERNEL_LINES = 120
KERNEL_FILES = ("triton.py", "hopper.py", "hopper_quantized.py")
FILE_LINES = 600
FAMILY_LINES = 80
SHARED = ("__init__.py", "decoder.py", "model_types.py")  # files of models/ that are no family
ARGUMENTS = 6

PYTHON = [p for p in tree.tracked(".py")]
PRODUCT = [p for p in PYTHON if p.parts[0] in ("python", "kernels")]
RUST = [p for p in tree.tracked(".rs")]


def limit(path: tree.Path) -> int:
    return KERNEL_LINES if path.name in KERNEL_FILES else FUNCTION_LINES


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_functions_are_short(path: tree.Path) -> None:
    long = [(f.name, f.lines) for f in tree.functions(path) if f.lines > limit(path)]
    assert not long, f"{path}: functions over {limit(path)} lines: {long}"


@pytest.mark.parametrize("path", [p for p in PRODUCT if p.name not in KERNEL_FILES], ids=str)
def test_functions_take_few_arguments(path: tree.Path) -> None:
    if {"kernels", "penstock_kernels", "cpu"} & set(path.parts):
        pytest.skip("an op takes the tensors that its maths has")
    many = [(f.name, f.arguments) for f in tree.functions(path) if f.arguments > ARGUMENTS]
    assert not many, f"{path}: functions with over {ARGUMENTS} arguments: {many}"


@pytest.mark.parametrize("path", PYTHON + RUST, ids=str)
def test_files_are_short(path: tree.Path) -> None:
    lines = len(tree.read(path).splitlines())
    assert lines <= FILE_LINES, f"{path} has {lines} lines; the limit is {FILE_LINES}"


def test_model_family_files_are_short() -> None:
    for path in PRODUCT:
        if path.parent.parts == ("python", "penstock", "models") and path.name not in SHARED:
            lines = len(tree.read(path).splitlines())
            assert lines <= FAMILY_LINES, (
                f"{path} has {lines} lines; a family has <= {FAMILY_LINES}"
            )


def test_the_median_python_function_is_small() -> None:
    lines = [f.lines for path in PRODUCT for f in tree.functions(path)]
    assert statistics.median(lines) <= 14, f"median function: {statistics.median(lines)} lines"
