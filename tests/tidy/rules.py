"""The rules of ARCHITECTURE.md, "Who may import whom": the only place where they stand."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import tree

PAGE = Path("ARCHITECTURE.md")
CRATES = "crates"
HTTP = "modules of router/http/src, among each other"
PYTHON = "python/penstock"
WORKER = "python/penstock/worker"


@lru_cache
def rules() -> dict[str, dict[str, set[str]]]:
    """Heading of a list of rules -> name -> names that it may import.

    A line without an arrow is a heading. A rule is `NAMES -> NAMES`, both separated by spaces;
    a semicolon separates the rules of a line.
    """
    section = tree.read(PAGE).split("## Who may import whom\n")[1].split("\n## ")[0]
    block = section.split("```text\n")[1].split("```")[0]
    found: dict[str, dict[str, set[str]]] = {}
    heading = ""
    for line in block.splitlines():
        if "->" not in line:
            heading = line.strip()
            found[heading] = {}
            continue
        for rule in filter(str.strip, line.split(";")):
            names, _, targets = rule.partition("->")
            for name in names.split():
                assert name not in found[heading], f"{PAGE}: two rules for {name} in {heading}"
                found[heading][name] = set(targets.split())
    return found
