"""Words that must not stand in the project, and settings that must not hide."""

from __future__ import annotations

import re

import pytest
import tree

TEXT = (".rs", ".py", ".md", ".toml", ".proto", ".sh", ".html", ".jinja", ".yml", ".pyi")
FILES = [p for p in tree.tracked() if p.suffix in TEXT or p.name == "Makefile"]
OWN = "tests/tidy/test_words.py"
# Phrases that hide the subject of a sentence. A line break or a comment sign may stand in them.
PHRASES = (
    "what is told of that", "whoever", "of which", "so many", "but for", "nobody's", "for want of",
    "is told", "are told",
)  # fmt: skip
BANNED = re.compile(
    r"\b(?:" + "|".join(p.replace(" ", r"[\s#/*>]+") for p in PHRASES) + r")\b", re.IGNORECASE
)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_todo_comments(path: tree.Path) -> None:
    if path.as_posix() == OWN:
        return
    found = re.findall(r"\b(TODO|FIXME|XXX|HACK)\b", tree.read(path))
    assert not found, f"{path}: {found}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_plain_words(path: tree.Path) -> None:
    if path.as_posix() == OWN:
        return
    text = tree.read(path)
    found = [f"{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in BANNED.finditer(text)]
    assert not found, f"{path}: {found}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_machine_specific_paths(path: tree.Path) -> None:
    if path.as_posix() == OWN:
        return
    found = re.findall(r"(?<![\w.])/(?:work|root|home)/\w+", tree.read(path))
    assert not found, f"{path}: {found}"


def test_the_worker_reads_no_environment() -> None:
    """All of a worker's configuration arrives by Load."""
    for path in tree.tracked(".py"):
        if path.parts[:2] == ("python", "penstock"):
            found = re.findall(r"os\.(?:environ|getenv)", tree.read(path))
            assert not found, f"{path} reads the environment"


def test_rust_reads_the_environment_in_one_crate() -> None:
    for path in tree.tracked(".rs"):
        if path.parts[0] == "router":
            assert not re.search(r"\benv::var", tree.read(path)), f"{path} reads the environment"


@pytest.mark.parametrize("path", tree.tracked(".md"), ids=str)
def test_markdown_links_resolve(path: tree.Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", tree.read(path)):
        assert (tree.ROOT / path.parent / target).exists(), f"{path}: broken link {target}"


def test_unsafe_code_is_in_allowed_files_only() -> None:
    """The kinds of numbers, slices of tensors' memory, views of them, a job that threads share, and
    kernels with wide instructions. The kernels themselves are safe code."""
    files = {f"{name}.rs" for name in ("element", "memory", "views", "team", "vectors")}
    for path in tree.tracked(".rs"):
        if path.parent.as_posix() != "python/src/cpu" or path.name not in files:
            assert not re.search(r"\bunsafe\b", tree.read(path)), f"{path} has unsafe code"
