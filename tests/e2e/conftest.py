"""Fixtures of the tests that go through the whole product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_process import OPTIONS
from penstock import LLM


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model that ships, one engine for a module's tests."""
    with LLM(max_slots=4, **OPTIONS) as llm:
        yield llm
