"""Fixtures of the tests that go through the whole product."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import OPTIONS
from penstock import LLM
from random_models import draw_prompts, generate


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model that ships, one engine for a module's tests."""
    with LLM(max_slots=4, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts for a module's random `model`."""
    return draw_prompts()


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What `transformers` answers to them with that model."""
    return generate(model, prompts)
