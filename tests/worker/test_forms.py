"""How checkpoints store tensors: the entries of any region, by definition."""

from __future__ import annotations

import itertools

import pytest
import torch
from penstock.weights import (
    Alternating,
    AnyOf,
    Blocks,
    FirstRows,
    Flat,
    FlatBlocks,
    Form,
    Merged,
)
from penstock.weights.target import Target

SHAPE = (7, 10)
REGIONS = [(slice(0, 7), slice(0, 10)), (slice(2, 5), slice(3, 9)), (slice(6, 7), slice(4, 4))]


def place(form: Form, row: int, column: int) -> int:
    """Where the flat stored tensor has the entry of a place."""
    flat = row * SHAPE[1] + column
    if isinstance(form, Blocks):
        height, width = (size or n for size, n in zip(form.sizes, SHAPE, strict=True))
        return row // height * -(-SHAPE[1] // width) + column // width
    return flat // form.size if isinstance(form, FlatBlocks) else flat


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (Flat(), (70,)),
        (Merged(0), (70,)),
        (Blocks((1, 1)), (7, 10)),
        (Blocks((3, 4)), (3, 3)),
        (Blocks((1, 0)), (7, 1)),
        (Blocks((0, 5)), (1, 2)),
        (Blocks((0, 0)), (1, 1)),
        (FlatBlocks(8), (9,)),
        (FlatBlocks(70), (1,)),
    ],
)
@pytest.mark.parametrize("region", REGIONS)
def test_entries_of_a_region(
    form: Form, shape: tuple[int, ...], region: tuple[slice, slice]
) -> None:
    assert form.shapes(SHAPE) == [shape]
    stored = torch.randn(shape)
    found = form.entries(stored, SHAPE, region)
    rows, columns = (range(part.start, part.stop) for part in region)
    assert found.shape == (len(rows), len(columns))
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        assert found[i, j] == stored.view(-1)[place(form, row, column)]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (7, 1), (1, 7)])
def test_the_stored_shape_chooses_a_form(shape: tuple[int, ...]) -> None:
    """Dimensions of 1 do not count."""
    form = AnyOf((Blocks((0, 0)), Blocks((1, 0))))
    assert form.accepts(shape, SHAPE)
    stored = torch.randn(shape)
    found = form.entries(stored, SHAPE, (slice(2, 4), slice(0, 3)))
    flat = stored.view(-1)
    rows = flat[2:4] if len(flat) == 7 else flat.expand(2)
    assert torch.equal(found, rows[:, None].expand(2, 3))


@pytest.mark.parametrize("shape", [(2,), (7, 2), (10,)])
def test_other_shapes_fit_no_form(shape: tuple[int, ...]) -> None:
    form = AnyOf((Blocks((0, 0)), Blocks((1, 0))))
    target = Target(torch.empty(SHAPE), SHAPE, REGIONS[0], form=form)
    assert not target.accepts(shape)
    assert target.shapes == [(1, 1), (7, 1)]
    with pytest.raises(ValueError, match="no form"):
        form.entries(torch.randn(shape), SHAPE, REGIONS[0])


@pytest.mark.parametrize("rows", [slice(0, 6), slice(2, 5), slice(4, 6)])
def test_alternating_rows_are_put_apart(rows: slice) -> None:
    shape, stored = (6, 10), torch.randn(6, 10)
    apart = torch.cat((stored[::2], stored[1::2]))
    assert Alternating().accepts(shape, shape)
    found = Alternating().entries(stored, shape, (rows, slice(3, 9)))
    assert torch.equal(found, apart[rows, 3:9])


@pytest.mark.parametrize(
    ("shape", "some", "any_number"),
    [
        ((7, 10), False, True),
        ((9, 10), True, True),
        ((12, 10), False, True),
        ((6, 10), False, False),
        ((9, 11), False, False),
    ],
)
def test_rows_behind_the_last(shape: tuple[int, ...], some: bool, any_number: bool) -> None:
    assert FirstRows(2).accepts(shape, SHAPE) == some
    assert FirstRows().accepts(shape, SHAPE) == any_number
    stored = torch.randn(9, 10)
    for form in (FirstRows(2), FirstRows()):
        found = form.entries(stored, SHAPE, (slice(2, 7), slice(3, 9)))
        assert torch.equal(found, stored[2:7, 3:9])
