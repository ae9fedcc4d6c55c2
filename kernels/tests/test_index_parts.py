"""The choice of tokens, and of blocks, in parts of few queries, as where all scores take too much
memory.

Run in Triton's interpreter, in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from penstock_kernels.case import Index
from penstock_kernels.index_blocks import reference as block_reference
from penstock_kernels.index_blocks import triton as block_triton
from penstock_kernels.index_blocks.cases import Blocks, block_arguments
from penstock_kernels.index_tokens import reference, triton
from penstock_kernels.index_tokens.cases import index_arguments

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreter.py"
)


@pytest.mark.parametrize("chunks", [[(3, 9), (0, 7), (6, 25)], [(1, 9), (0, 0), (1, 25), (1, 4)]])
@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_of_few_queries(
    monkeypatch: pytest.MonkeyPatch, chunks: list[tuple[int, int]], at_once: int
) -> None:
    torch.manual_seed(3)
    shape, host = Index(3, 24, 8, 60), torch.device("cpu")
    case = index_arguments(shape, chunks, 5, torch.float32, host, block_tokens=4)
    capacity = case["block_tables"].shape[1] * 4
    monkeypatch.setattr(triton, "SCRATCH", at_once * capacity + 1)
    expected = {**case, "rows": case["rows"].clone(), "counts": case["counts"].clone()}
    reference.index_tokens(**expected)
    triton.index_tokens(**case)
    assert torch.equal(case["counts"], expected["counts"])
    assert torch.equal(case["rows"], expected["rows"])


@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_of_few_queries_that_choose_blocks(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    torch.manual_seed(3)
    shape, host = Index(3, 24, 8, 60), torch.device("cpu")
    lengths = [25, 0, 9, 40, 33]
    case = block_arguments(shape, Blocks(4, 3, 1), lengths, torch.float32, host, 4, 2)
    capacity = 3 * case["block_tables"].shape[1]
    monkeypatch.setattr(block_triton, "SCRATCH", at_once * capacity + 1)
    expected = {**case, "chosen": case["chosen"].clone()}
    block_reference.index_blocks(**expected)
    block_triton.index_blocks(**case)
    assert torch.equal(case["chosen"], expected["chosen"])
