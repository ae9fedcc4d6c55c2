"""What release builds check."""

from __future__ import annotations

import re

import pytest
import tree

CRATES = ["scheduler", "request", "text", "engine", "http"]


@pytest.mark.parametrize("package", [f"penstock-{name}" for name in CRATES])
def test_release_builds_check_integer_overflow(package: str) -> None:
    manifest = tree.read(tree.Path("Cargo.toml"))
    section = re.search(
        rf"^\[profile\.release\.package\.{package}\]\n(?:[^\[]*\n)*", manifest, re.M
    )
    assert section and "overflow-checks = true" in section[0]
