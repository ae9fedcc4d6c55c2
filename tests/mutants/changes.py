"""The changes that are made to a source file, one at a time.

Only code inside functions is changed. Texts, annotations, log calls, `assert` and the arguments in
`STYLE` stay as they are: a test of behaviour need not notice a change of those.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOG_CALLS = ("debug", "info", "warning", "error", "exception")
# Arguments that guard against a programmer's mistake, or that matter on a GPU alone.
STYLE = ("strict", "daemon", "name", "non_blocking", "exc_info", "pin_memory")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXT = 70  # characters of a change that are shown


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    function: str  # qualified name
    first: int  # line of what is changed
    last: int
    column: int  # in the first line
    index: int  # among all changes of the file
    change: str

    @property
    def name(self) -> str:
        """The same as long as its function is, even where lines have moved."""
        return f"{self.path}: {self.function}: {self.change}"


@dataclass(frozen=True)
class Site:
    """A node that can be replaced. `place` is its index where the parent's field is a list."""

    function: str
    parent: ast.AST
    field: str
    place: int | None
    node: ast.expr | ast.stmt
    new: ast.AST


def mutants(root: Path, path: str) -> list[Mutant]:
    """All changes of a file, in the order of its text."""
    found, seen = list[Mutant](), Counter[str]()
    for index, site in enumerate(_sites(ast.parse((root / path).read_text()))):
        node = site.node
        change = f"{_short(node)} -> {_short(site.new)}"
        seen[site.function + change] += 1
        count = seen[site.function + change]
        if count > 1:  # told apart from the same change elsewhere in the function
            change += f" (no. {count})"
        last = node.end_lineno or node.lineno
        found.append(Mutant(path, site.function, node.lineno, last, node.col_offset, index, change))
    return found


def mutated(root: Path, mutant: Mutant) -> str:
    """The file's text with the change."""
    tree = ast.parse((root / mutant.path).read_text())
    site = next(s for index, s in enumerate(_sites(tree)) if index == mutant.index)
    if site.place is None:
        setattr(site.parent, site.field, site.new)
    else:
        getattr(site.parent, site.field)[site.place] = site.new
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= TEXT else text[: TEXT - 3] + "..."


def _sites(tree: ast.Module) -> Iterator[Site]:
    for function, top in _functions(tree, ""):
        for statement in top.body:
            place = top.body.index(statement)
            yield from _within(function, top, "body", place, statement)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _within(
    function: str, parent: ast.AST, field: str, place: int | None, node: ast.AST
) -> Iterator[Site]:
    """The changes of a node and of all below it."""
    if _left_alone(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        for new in _changes(node):
            yield Site(function, parent, field, place, node, new)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(value, ast.AST):
            yield from _conditions(function, node, name, value)
            yield from _within(function, node, name, None, value)
        elif isinstance(value, list):
            for at, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _within(function, node, name, at, child)


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in STYLE
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value.func
        return isinstance(call, ast.Attribute) and call.attr in LOG_CALLS
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _conditions(function: str, parent: ast.AST, field: str, test: ast.AST) -> Iterator[Site]:
    """Turned round, unless it is a comparison or a negation, which is changed itself."""
    changed_itself = ast.Compare | ast.Constant | ast.UnaryOp
    if field == "test" and isinstance(test, ast.expr) and not isinstance(test, changed_itself):
        yield Site(function, parent, field, None, test, ast.UnaryOp(ast.Not(), test))


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    if _can_go(node):
        yield ast.Pass()
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                other = SWAPS[type(operator)]()
                yield _with(node, ops=[*node.ops[:at], other, *node.ops[at + 1 :]])
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in SWAPS:
            yield _with(node, op=SWAPS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Name() if node.id in NAMES:
            yield ast.Name(NAMES[node.id], node.ctx)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _unfiltered(node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _can_go(node: ast.AST) -> bool:
    """Whether a statement can be left out, so that what is left can still run."""
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete)


def _unfiltered(
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
) -> Iterator[ast.AST]:
    """Without the condition of a comprehension."""
    for at, part in enumerate(node.generators):
        if part.ifs:
            parts = [*node.generators[:at], _with(part, ifs=[]), *node.generators[at + 1 :]]
            yield _with(node, generators=parts)
