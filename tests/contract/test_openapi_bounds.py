"""What docs/openapi.json says of values is what the server keeps: values at each bound are taken,
values beyond it are refused by the field's name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from openapi_spec import BESIDE, INSTEAD, SCHEMAS, filled, posts
from serving import Server

# Bounds of a type or of what is read. A value at one of them meets another rule before: it is too
# much for brook's context, for instance.
READ_ONLY = {
    *(2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1),
    *(2**18, 2**16, 2**14, 4096, 1024, 256),
}
# (schema, field) whose values mean something only in some context; other tests send them there.
ELSEWHERE = {
    ("AnthropicBlock", "type"),
    ("AnthropicOutputFormat", "type"),
    ("AnthropicToolChoice", "type"),
    ("Grammar", "type"),
    *(("InputItem", field) for field in SCHEMAS["InputItem"]["properties"]),
    ("InputTensor", "datatype"),
    ("InputTensor", "name"),
    ("Message", "role"),
    ("AllowedFunctions", "mode"),
    ("AllowedTools", "mode"),
    ("FunctionName", "name"),
    ("FunctionName", "type"),
    ("NamedFunction", "name"),
    ("NamedToolChoice", "type"),
    ("ResponseFormat", "type"),
    ("TextFormat", "type"),
}
# (field, value): the model's end tokens take some off; a call needs more tokens than one.
LESS = (("beam_width", 20), ("tool_choice", "required"))
# An answer of no token is an echo.
EMPTY = ("max_tokens", "CompletionRequest")
SHORT = {
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "max_output_tokens": 1,
    "max_new_tokens": 1,
}


class Draw(NamedTuple):
    """A value, whether the server takes it (None: that depends on other rules), and the fields
    within it that lead to what is drawn, if it is an object."""

    value: Any
    taken: bool | None
    fields: tuple[str, ...] = ()


def numbers(schema: dict[str, Any]) -> Iterator[Draw]:
    whole = schema["type"] == "integer" or "integer" in schema["type"]
    for sign, end in ((-1, "inimum"), (1, "aximum")):
        closed = schema.get("m" + end)
        ruled = schema.get("exclusiveM" + end)
        if closed is not None:
            taken = None if closed in READ_ONLY else True
            yield Draw(closed, taken)
            yield Draw(closed + sign * (1 if whole else max(abs(closed) * 0.01, 1e-7)), False)
        elif ruled is not None:
            yield Draw(ruled, False)
            yield Draw(ruled - sign * (1 if whole else 0.01), True)


def texts(schema: dict[str, Any]) -> Iterator[Draw]:
    if schema.get("minLength"):
        yield Draw("", False)
    if most := schema.get("maxLength"):
        yield Draw("a" * most, None if most in READ_ONLY else True)
        yield Draw("a" * (most + 1), False)
    if "pattern" in schema:
        yield Draw(" ", False)


def lists(schema: dict[str, Any], example: Any, above: tuple[str, ...]) -> Iterator[Draw]:
    entry = example[0] if example else None
    if schema.get("minItems"):
        yield Draw([], False)
    if schema.get("uniqueItems"):
        yield Draw([entry] * 2, False)
    elif most := schema.get("maxItems"):
        yield Draw([entry] * most, None if most in READ_ONLY else True)
        yield Draw([entry] * (most + 1), False)
    for draw in draws(schema.get("items", {}), entry, above):
        yield Draw([draw.value], draw.taken, draw.fields)


def objects(schema: dict[str, Any], example: Any) -> Iterator[Draw]:
    whole = example if isinstance(example, dict) and "required" in schema else {}
    if most := schema.get("maxProperties"):
        yield Draw({str(key): 1 for key in range(most + 1)}, False)
    names = schema.get("propertyNames", {})
    if "pattern" in names:
        yield Draw({"x": 1}, False)
    for name in names.get("not", {}).get("enum", []):
        yield Draw({name: 1}, False)
    for name, of in schema.get("properties", {}).items():
        complete = {*schema.get("required", ())} <= {*whole, name}
        for draw in draws(of, None):
            yield Draw({**whole, name: draw.value}, draw.taken and (complete or None))
    for draw in draws(schema.get("additionalProperties") or {}, None):
        yield Draw({"5": draw.value}, draw.taken)


def one_of(schema: dict[str, Any]) -> Iterator[Draw]:
    yield from (Draw(value, True) for value in schema["enum"])
    wrong = {"string": "wrong", "array": ["wrong"], "object": {"wrong": 1}}
    kind = schema.get("type", "string")
    kinds = [kind] if isinstance(kind, str) else kind
    yield from (Draw(wrong[kind], False) for kind in kinds if kind in wrong)


def draws(schema: dict[str, Any], example: Any, above: tuple[str, ...] = ()) -> Iterator[Draw]:
    """Values at the bounds of a schema and beyond them. `example` is a value that it takes."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name not in above:
            yield from parts(name, example, (*above, name))
    elif shapes := schema.get("anyOf") or schema.get("oneOf"):
        for shape in shapes:
            yield from draws(shape, fitting(shape, example), above)
    elif "enum" in schema:
        yield from one_of(schema)
    else:
        kinds = schema.get("type", [])
        if "integer" in kinds or "number" in kinds:
            yield from numbers(schema)
        if "string" in kinds:
            yield from texts(schema)
        if "array" in kinds:
            yield from lists(schema, example, above)
        if "object" in kinds:
            yield from objects(schema, example)


def fitting(shape: dict[str, Any], example: Any) -> Any:
    """An example for one of the shapes of a field whose example may have another."""
    if shape.get("type") != "array" or isinstance(example, list):
        return example
    items = shape.get("items", {})
    if "$ref" in items or "properties" in items:
        return [{"type": "text", "text": "a"}]
    return [{"integer": 5, "array": [5], "string": "a"}.get(items.get("type", ""))]


def parts(name: str, example: Any, above: tuple[str, ...]) -> Iterator[Draw]:
    """Draws of an object: one of its fields has a drawn value."""
    fields = SCHEMAS[name]["properties"]
    needed = SCHEMAS[name].get("required", [])
    whole = {field: fields[field]["example"] for field in needed}
    if isinstance(example, dict) and needed:
        whole = example
    for field, schema in fields.items():
        idle = "no effect" in schema.get("description", "")
        for draw in () if idle else draws(schema, whole.get(field, schema["example"]), above):
            hidden = (name, field) in ELSEWHERE or (field, draw.value) in LESS
            taken = None if draw.taken and hidden else draw.taken
            value = {**whole, **beside(name, field), field: draw.value}
            yield Draw(value, taken, (field, *draw.fields))


def beside(schema: str, field: str) -> dict[str, Any]:
    """What a field needs beside it, and what keeps answers short."""
    known = SCHEMAS[schema]["properties"]
    needed = SHORT | BESIDE.get(field, {}) | ({"echo": True} if (field, schema) == EMPTY else {})
    if field == "tool_choice":
        needed["tools"] = known["tools"]["example"]
    return {name: value for name, value in needed.items() if name in known}


def schema_of(path: str) -> str:
    return str(posts()[path]["schema"]["$ref"].rsplit("/", 1)[-1])


# Routes that answer; what goes with an answer has no effect on the others.
ANSWERING = ("/generate", "/v1/messages", "/v1/c", "/v1/r", "/v2/")
ROUTES = {
    schema_of(path): path
    for path in posts()
    if path.startswith(ANSWERING) and not path.endswith(("_tokens", "_stream"))
}
FIELDS = [
    (name, field)
    for name in ROUTES
    for field, said in SCHEMAS[name]["properties"].items()
    if "no effect" not in said.get("description", "")
]


def body(schema: str, field: str, value: Any) -> dict[str, Any]:
    """The example of the schema's route with that value."""
    changed = copy.deepcopy(posts()[ROUTES[schema]]["example"])
    changed |= beside(schema, field) | {field: value}
    changed.pop(INSTEAD.get(field, ""), None)
    return changed


def check(server: Server, schema: str, draw: Draw, sent: dict[str, Any]) -> None:
    path = filled(ROUTES[schema])
    reply = httpx.post(server.url + path, json=sent, timeout=60)
    result = f"{draw.fields}: {json.dumps(sent)[:500]}\n{reply.status_code} {reply.text[:300]}"
    if draw.taken and "timeout" in draw.fields:
        # A very short one is taken, and then passes before the answer.
        assert reply.status_code in (200, 504), result
    elif draw.taken:
        assert reply.status_code == 200, result
    elif draw.taken is False:
        assert 400 <= reply.status_code < 500, result
        assert any(field in reply.text for field in draw.fields), result


@pytest.mark.parametrize(("schema", "field"), FIELDS)
def test_field_bounds_hold_as_described(server: Server, schema: str, field: str) -> None:
    said = SCHEMAS[schema]["properties"][field]
    for draw in draws(said, said.get("example"), (schema,)):
        taken = None if (field, draw.value) in LESS else draw.taken
        draw = Draw(draw.value, taken, (field, *draw.fields))
        check(server, schema, draw, body(schema, field, draw.value))
