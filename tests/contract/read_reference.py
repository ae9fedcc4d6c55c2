"""Writes native.json, the table of the native API, from a description of that API.

`python tests/contract/read_reference.py DESCRIPTION.md`. The description is a Markdown document
with sections 1.5 (a table of parameters), 3.1 (of routes), 3.2 (schemas: `Name: {field, field}`),
3.3 (a table of errors), 3.4 (headers) and 4 (a table of metrics). Only names, types, ranges and
error texts are taken.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("native.json")
# A bound, with the name of a limit of the server in its place where it is one.
NUMBER = r"-?[0-9.]+[0-9]|-?[0-9]|max_\w+"
RANGES = (
    # (least, whether it is allowed, most, whether it is allowed)
    (rf"({NUMBER})\.\.=({NUMBER})", lambda m: [m[1], True, m[2], True]),
    (rf"({NUMBER}) < x < ({NUMBER})", lambda m: [m[1], False, m[2], False]),
    (rf"> ({NUMBER})", lambda m: [m[1], False, None, True]),
    (rf"(?:len )?<= ({NUMBER})", lambda m: [None, True, m[1], True]),
    (r"!= 0", lambda _: ["0", False, None, True]),
)


def section(document: str, number: str) -> str:
    """The text under the heading that begins with `number`."""
    found = re.search(rf"^#+ {re.escape(number)}\.? .*?\n(.*?)(?=^#|\Z)", document, re.M | re.S)
    if not found:
        raise SystemExit(f"there is no section {number}")
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of its first table, without the heading and the line under it."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def ticked(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def named_limits(text: str, rule: str) -> str:
    """An error's text, with limits by the names that the rule has for them."""
    names = re.findall(r"(max_\w+)(?:\((\d+)\))?", rule)
    for name, value in names:
        text = text.replace(f"{{{value}}}", f"{{{name}}}")
    for short in ("max", "max_total"):
        whole = [name for name, _ in names if name.startswith(short)]
        if whole:
            text = text.replace(f"{{{short}}}", f"{{{whole[-1]}}}")
    return text


def bounds(rule: str) -> list[Any] | None:
    for pattern, read in RANGES:
        found = re.match(pattern, rule)
        if found:
            return read(found)
    return None


def parameters(text: str) -> dict[str, Any]:
    """Name -> type, default, range, error texts. A row without a name of its own is of `inputs`."""
    table: dict[str, Any] = {}
    name = ""
    for cells in rows(text):
        first, typed, rule, errors = cells
        name = first if re.fullmatch(r"\w+", first) else "inputs"
        texts = [named_limits(each, rule) for each in errors.split(" / ") if each]
        if name in table:
            table[name]["errors"] += texts
            continue
        kind = re.match(r"[\w\[\]{},]+\??", typed)
        default = re.search(r"\(([\w.\[\]]+)", typed)
        table[name] = {
            "type": kind[0] if kind else "",
            "default": default[1] if default else None,
            "range": bounds(rule),
            "errors": texts,
        }
    return table


def other_errors(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("Others:")]
    return [found for line in lines for found in ticked(line)]


def expanded(path: str) -> list[str]:
    """`a[/b]` is two paths; `:m` is written `{m}`."""
    found = re.fullmatch(r"(.*)\[(.*)\](.*)", path)
    paths = [found[1] + found[3], found[1] + found[2] + found[3]] if found else [path]
    return [re.sub(r":(\w+)", r"{\1}", each) for each in paths]


def paths(cell: str) -> list[list[str]]:
    """Method and path of each route of a cell."""
    found = []
    base = ""
    for part in cell.split(";"):
        method = re.search(r"\b(GET|POST)\b", part)
        if not method:
            raise SystemExit(f"a route without a method: {part}")
        for path in re.findall(r"\.{3}/\w+|(?<= )/[^\s,]*", part):
            # `.../infer` goes on from the path before it.
            base = base if path.startswith("...") else path
            whole = [expanded(base)[0] + path[3:]] if path.startswith("...") else expanded(path)
            found += [[method[1], each] for each in whole]
    return found


def routes(text: str) -> list[dict[str, Any]]:
    """Routes, and the fields of their answers where the table has them."""
    table: list[dict[str, Any]] = []
    for cell, _, _, answer in rows(text):
        table += [{"method": method, "path": path, "answer": {}} for method, path in paths(cell)]
        answer = re.sub(r" \([^()]*\)$", "", answer.strip("`"))
        if answer.startswith(("{", "[{")):
            table[-1]["answer"] = shape(answer, "")[1]
    return table


def split(text: str, separators: str) -> list[str]:
    """At separators outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (not quoted) * ((char in "{[") - (char in "}]"))
        if char in separators and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def fields(text: str, at: str = "") -> dict[str, str]:
    """Path of each field -> its type, if the page has one. `a[].b`: a field of `a`'s elements."""
    table: dict[str, str] = {}
    for field in split(text.replace(" OR ", ","), ","):
        found = re.match(r"(\w+)(\??):?(.*)", field, re.S)
        if found:
            name, optional, kind = found.groups()
            kinds, nested = shape(kind, at + name)
            known = table.get(at + name, "")
            table[at + name] = "|".join(filter(None, [known, optional + "|".join(kinds)]))
            table |= nested
    return table


def shape(text: str, path: str) -> tuple[list[str], dict[str, str]]:
    """The plain ones among the types of a field, and the fields of the others."""
    kinds: list[str] = []
    table: dict[str, str] = {}
    for kind in split(text, "|"):
        if kind.startswith("null:"):
            kinds.append("null")
            kind = kind.removeprefix("null:")
        if kind.startswith("{"):
            # What one kind of object has beside another.
            for name, result in fields(kind[1:-1], path and path + ".").items():
                known = table.get(name)
                table[name] = (
                    f"{known}|{result}" if known and result and known != result else result
                )
        elif kind.startswith("[") and "{" in kind:
            more, nested = shape(kind[1:-1], path + "[]")
            kinds += more
            table |= nested
        elif kind:
            kinds.append(kind)
    return kinds, table


def schemas(text: str) -> dict[str, dict[str, str]]:
    """Schema -> the paths of its fields -> type."""
    table = {}
    text = re.sub(r"\(alias (\w+)\)", r", \1", text)
    text = re.sub(r" \([^()]*\)", "", text)
    for found in re.finditer(r"(?:^|(?<=\. ))([A-Z]\w+): ", text, re.M):
        line = text[found.end() :].split("\n", 1)[0]
        body = split(line, ".;")[0]
        if body.startswith("{"):
            table[found[1]] = fields(body[1:-1])
        elif re.match(r"\w+[,\[]", body):
            table[found[1]] = fields(body)
    return table


def status(code: str, kind: str, error: str) -> dict[str, Any]:
    return {"status": int(code), "error_type": kind, "error": error}


def statuses(text: str, schemas: str) -> list[dict[str, Any]]:
    """Statuses with their `error_type`s, and how their texts begin."""
    table = []
    for code, kinds, errors in rows(text):
        names = kinds.split(" / ")
        texts = [re.sub(r" \(sic\)| ?\.\.\.", "", each) for each in errors.split(" / ")]
        texts += texts[-1:] * (len(names) - len(texts))
        table += [status(code, *each) for each in zip(names, texts, strict=True)]
    for code, body in re.findall(r"(\d{3}) (\{\"error\".*?\"\})", schemas):
        result = json.loads(body)
        table.append(status(code, result["error_type"], result["error"]))
    return table


def bare_statuses(text: str) -> list[int]:
    lines = [line for line in text.splitlines() if line.startswith("Not in that shape")]
    return [int(status) for line in lines for status in re.findall(r"\b4\d\d\b", line)]


def headers(text: str) -> dict[str, dict[str, str]]:
    """Of answers in one piece and of streams: name -> type, where the page has one."""
    found = re.search(r"Headers non-stream: (.*?)\. Stream: (.*?)\. ", text, re.S)
    if not found:
        raise SystemExit("there is no line of headers")
    whole: dict[str, str] = {}
    for name, note in re.findall(r"(x-[a-z-]+)(?: \(([^)]*)\))?", found[1]):
        whole[name] = ""
        if note.endswith("ints"):
            untyped = [each for each, kind in whole.items() if not kind]
            whole |= dict.fromkeys(untyped, "int")
        elif note.endswith("float"):
            whole[name] = "float"
        elif note:
            whole[name] = "string"
    stream = dict(re.findall(r"(x-[a-z-]+)(?:: (\w+))?", found[2]))
    return {"whole": whole, "stream": stream}


def metrics(text: str) -> dict[str, dict[str, Any]]:
    table = {}
    for names, kind, *notes in rows(text):
        labels = re.findall(r"(\w+) = (\w+(?:, \w+)*)", notes[-1])
        result = {label: values.split(", ") for label, values in labels}
        if notes[-1] == "method":
            result = {"method": []}
        for name in names.split(", "):
            table[name] = {"type": kind.split(" ")[0], "labels": result}
    return table


def read(document: str) -> dict[str, Any]:
    rules, shapes, errors = (section(document, number) for number in ("1.5", "3.2", "3.3"))
    return {
        "parameters": parameters(rules),
        "other_errors": other_errors(rules),
        "routes": routes(section(document, "3.1")),
        "schemas": schemas(shapes),
        "statuses": statuses(errors, shapes),
        "bare_statuses": bare_statuses(errors),
        "headers": headers(section(document, "3.4")),
        "metrics": metrics(section(document, "4")),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    TABLE.write_text(json.dumps(read(Path(sys.argv[1]).read_text()), indent=1) + "\n")
