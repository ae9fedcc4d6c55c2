"""What release builds check."""

from __future__ import annotations

import re

import pytest
import tree


@pytest.mark.parametrize("package", ["penstock-scheduler", "penstock-router"])
def test_release_builds_check_integer_overflow(package: str) -> None:
    manifest = tree.read(tree.Path("Cargo.toml"))
    section = re.search(
        rf"^\[profile\.release\.package\.{package}\]\n(?:[^\[]*\n)*", manifest, re.M
    )
    assert section and "overflow-checks = true" in section[0]
