# ruff: noqa: SIM905 (tables of words and phrases read best as they are)
"""General English from the docstrings of the Python standard library that runs this."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from random import Random

from ..sample import Sample

# Modules with long, well-written docstrings.
MODULES = (
    "argparse ast asyncio/events bdb calendar codecs collections/__init__ configparser contextlib "
    "copy csv dataclasses datetime decimal difflib dis doctest enum fileinput fractions functools "
    "gettext glob gzip hashlib heapq imaplib inspect io ipaddress json/__init__ logging/__init__ "
    "mailbox mimetypes numbers optparse os pathlib pickle platform poplib posixpath pprint profile "
    "pstats pydoc queue random re/__init__ shelve shutil smtplib socket socketserver sqlite3/dump "
    "ssl statistics string subprocess tarfile tempfile textwrap threading timeit tokenize trace "
    "traceback turtle types typing unittest/case unittest/mock urllib/parse urllib/request uuid "
    "warnings wave weakref webbrowser zipapp zipfile"
).split()

_LONGEST = 1200


def _docstrings(path: Path) -> list[str]:
    if not path.exists():
        return []
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 60:
                found.append(text[:_LONGEST])
    return found


@cache
def texts() -> list[str]:
    """The docstrings of MODULES, in a fixed order; modules this Python lacks are left out."""
    folder = Path(inspect.getfile(inspect)).parent
    found: dict[str, None] = {}
    for module in MODULES:
        for text in _docstrings(folder / f"{module}.py"):
            found[re.sub(r"[ \t]+\n", "\n", text)] = None
    return list(found)


@cache
def vocabulary() -> list[str]:
    """The lower-case English-looking words of the docstrings, in alphabetical order."""
    return sorted(set(re.findall(r"(?<![\w.])[a-z]{2,12}(?![\w.(])", "\n".join(texts()))))


def word(rng: Random) -> str:
    """One of those words."""
    return rng.choice(vocabulary())


def plain(rng: Random, held: bool) -> Sample:
    """One docstring as plain text."""
    return Sample("library", text=rng.choice(texts()))
