"""The reference of selective_scan against its definition, one token after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penstock_kernels.case import Case, Size
from penstock_kernels.selective_scan.cases import CASES
from penstock_kernels.selective_scan.reference import selective_scan

SMALL = [case for case in CASES if case.size is Size.SMALL and case.name.startswith("f32")]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_token_by_token(case: Case) -> None:
    torch.manual_seed(3)
    given: dict[str, Any] = {
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in case.make(torch.device("cpu")).items()
    }
    x, b, c = given["x"], given["b"], given["c"]
    decay_log, bias, skip = (each.double() for each in given["heads"])
    states, (least, most) = given["states"].clone(), given["limits"]
    out = selective_scan(**given)
    for rows, block, begun in given["runs"].each():
        for head in range(x.shape[1]):
            group = head // (x.shape[1] // b.shape[1])
            state = states[block, 0, head] * begun
            for token in range(rows.start, rows.stop):
                dt = torch.log1p((given["step"][token, head] + bias[head]).exp())
                dt = min(max(dt, least), most)
                state = torch.exp(-decay_log[head].exp() * dt) * state
                state = state + dt * torch.outer(b[token, group], x[token, head])
                expected = state.T @ c[token, group] + skip[head] * x[token, head]
                torch.testing.assert_close(out[token, head], expected, rtol=0, atol=1e-10)
            torch.testing.assert_close(given["states"][block, 0, head], state, rtol=0, atol=1e-10)
