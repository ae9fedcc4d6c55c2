"""Tables of measured plans: those in the package, and the user's, whose entries take precedence.

A table is a JSON file per kind of GPU: `{"device": name, ..., "entries": [...]}`, with entries as
`Measured.entry` writes them. The user's tables are in `$XDG_CACHE_HOME/penstock/linear` (by default
`~/.cache/penstock/linear`). An unusable table is ignored, with one warning that says why.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .plan import BUCKETS, COUNTERS, KINDS, Gemv, Library, Plan, Problem, Skinny

log = logging.getLogger("penstock.kernels")

SHIPPED = Path(__file__).parent / "tuned"
Key = tuple[Problem, int]  # and the bucket of its rows


@dataclass(frozen=True)
class Measured:
    """The plan that was fastest for a problem and a bucket of rows."""

    problem: Problem
    rows: int
    plan: Plan
    us: float
    """Microseconds it took."""
    library_us: float
    """Microseconds that the plan Library took in the same run."""

    def entry(self) -> dict[str, Any]:
        """Returns the entry for the table."""
        times = {"us": round(self.us, 2), "library_us": round(self.library_us, 2)}
        return {**asdict(self.problem), "rows": self.rows, "plan": written(self.plan), **times}


def slug(name: str) -> str:
    """Returns the file name for a device's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def shipped_path(name: str) -> Path:
    """Returns the path of a device's table in the package; the file may not exist."""
    return SHIPPED / f"{slug(name)}.json"


def own_path(name: str) -> Path:
    """Returns the path of the user's table; the file may not exist. Raises RuntimeError without a
    home directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "penstock" / "linear" / f"{slug(name)}.json"


@lru_cache
def tuned(name: str) -> Mapping[Key, Plan]:
    """Returns the measured plans for a device: the user's, else those in the package."""
    found = dict(_plans(shipped_path(name), name))
    try:
        found |= _plans(own_path(name), name)
    except RuntimeError as error:
        log.warning("the user's table of plans is ignored: %s", error)
    if not found:
        log.info("no measured plans for %s; a rule chooses them; see `penstock tune`", name)
    return found


def merged(path: Path, name: str, measured: Iterable[Measured]) -> str:
    """Returns the text of the table at `path`, with new measurements in place of old entries.

    A table that is missing or cannot be used counts as empty.
    """
    new = [one.entry() for one in measured]
    replaced = {_key(entry) for entry in new}
    old = [entry for entry in _entries(path, name) if _key(entry) not in replaced]
    head = {"device": name, "torch": torch.__version__, "triton": _triton_version()}
    lines = ",\n".join("  " + json.dumps(entry) for entry in old + new)
    return f'{{{json.dumps(head)[1:-1]},\n "entries": [\n{lines}\n]}}\n'


def write(path: Path, text: str) -> None:
    """Replaces a table atomically. Raises OSError, and then leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def written(plan: Plan) -> list[Any]:
    """Converts a plan to its form in the table: its kind, then its numbers."""
    kind = next(name for name, cls in KINDS.items() if isinstance(plan, cls))
    return [kind, *asdict(plan).values()]


def _plans(path: Path, name: str) -> dict[Key, Plan]:
    return {_key(entry): _plan(entry) for entry in _entries(path, name)}


def _entries(path: Path, name: str) -> list[dict[str, Any]]:
    """Returns the entries of a valid table; none, with a warning, if the table is invalid."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["device"] != name:
            raise ValueError(f"it is of {table['device']!r}")
        entries: list[dict[str, Any]] = table["entries"]
        for entry in entries:
            _check(entry)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        log.warning(
            "the table of plans %s is ignored, so linears of few rows on %s may take a tenth "
            "longer: %s; delete it, or write it anew with `penstock tune`",
            path,
            name,
            reason,
        )
        return []
    return entries


def _key(entry: Mapping[str, Any]) -> Key:
    return Problem(entry["outputs"], entry["inputs"], entry["gated"]), entry["rows"]


def _plan(entry: Mapping[str, Any]) -> Plan:
    kind, *numbers = entry["plan"]
    return KINDS[kind](*numbers)


def _check(entry: Mapping[str, Any]) -> None:
    """Raises ValueError or a similar error for an entry that no kernel can execute."""
    problem, rows = _key(entry)
    sizes = (problem.outputs, problem.inputs)
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"outputs and inputs must be whole numbers above 0, found {sizes}")
    if type(problem.gated) is not bool or rows not in BUCKETS:
        raise ValueError(f"gated must be true or false and rows one of {BUCKETS}, found {entry}")
    kind, *numbers = entry["plan"]
    if kind not in KINDS or not all(type(number) is int for number in numbers):
        raise ValueError(f"plan must be one of {list(KINDS)} and whole numbers, found {entry}")
    if broken := broken_rule(_plan(entry), problem, rows):
        raise ValueError(f"{broken}, found {entry}")


def broken_rule(plan: Plan, problem: Problem, rows: int) -> str | None:
    """Returns the constraint of the kernels that a plan violates, or None."""
    if isinstance(plan, Library):
        return None
    if not _is_power_of_two(plan.warps) or plan.warps > 32:
        return "warps must be a power of two, 32 at most"
    if isinstance(plan, Gemv):
        if rows != 1:
            return "gemv is for one row"
        if not _is_power_of_two(plan.tile) or plan.tile > 64 or plan.programs not in range(33):
            return "gemv's tile must be a power of two, 64 at most, and its programs 0 to 32"
        return None
    return _broken_rule_of_skinny(plan, problem)


def _broken_rule_of_skinny(plan: Skinny, problem: Problem) -> str | None:
    sides = (plan.tile, plan.depth)
    if not all(_is_power_of_two(side) and 16 <= side <= 512 for side in sides):
        return "skinny's tile and depth must be powers of two from 16 to 512"
    if not (1 <= plan.splits <= 64 and 1 <= plan.stages <= 16):
        return "skinny's splits must be 1 to 64 and its stages 1 to 16"
    if plan.splits > 1 and (problem.gated or -(-problem.outputs // plan.tile) > COUNTERS):
        return f"only weights that are not gated, of at most {COUNTERS} tiles, can be split"
    return None


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _triton_version() -> str:
    import triton

    return str(triton.__version__)
