"""Penstock's templates mean what they mean in `transformers`: features of the language, row by row,
and expressions at random."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja_reference import comparable, ours, theirs

KNOWN = json.loads(Path(__file__).with_name("jinja_rows.json").read_text())
CONTEXT, METHODS = KNOWN["context"], KNOWN["methods"]


@pytest.mark.parametrize("template", KNOWN["rows"])
def test_template_features_render_as_in_jinja2(template: str) -> None:
    wanted = theirs(template, **CONTEXT)
    assert comparable(ours(template, **CONTEXT)) == comparable(wanted), wanted


REFUSED = [
    "{{ l.append(4) }}",
    "{{ d.update({'z': 1}) }}",
    "{{ d.pop('b') }}",
    "{{ 1 < 'a' }}",
    "{{ none < 1 }}",
    "{{ 1 in 'a1' }}",
    "{{ 'a' + 1 }}",
    "{{ nope + 1 }}",
    "{{ nope.x.y }}",
    "{{ nope() }}",
    "{{ s.nope() }}",
    "{{ n|length }}",
    "{{ n|list }}",
    "{% for x in n %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{{ i[1:2] }}",
    "{{ 1 // 0 }}",
    "{{ '%d' % 'a' }}",
    "{{ '%s %s' % s }}",
    "{{ s.index('zz') }}",
    "{{ {l: 1} }}",
    "{{ nope|tojson }}",
    "{{ [1, 'a']|sort }}",
    "{{ range(200000) }}",
    "{{ raise_exception('no') }}",
]


@pytest.mark.parametrize("template", REFUSED)
def test_templates_refused_by_jinja2_are_refused(template: str) -> None:
    assert theirs(template, **CONTEXT)[0] == "error"
    assert ours(template, **CONTEXT)[0] == "error"


SIGNS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "or"]
names = st.sampled_from([*(name for name in CONTEXT if name != "huge"), "nope"])
atoms = names | st.sampled_from(KNOWN["literals"])
signs = st.sampled_from(SIGNS)
ends = st.sampled_from(["", "0", "1", "-1", "2", "-2", "9", "-9"])
steps = st.sampled_from(["", ":", ":2", ":-1", ":-2"])
bases = {"text": ["s", "e", "w", "'Hello World'"], "dict": ["d", "de"], "list": ["l", "ls", "le"]}
calls = [(base, call) for kind in bases for base in bases[kind] for call in METHODS[kind]]


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of expressions."""
    inner = inner.map(lambda text: f"({text})") | atoms
    return st.one_of(
        st.builds("{} {} {}".format, inner, signs, inner),
        st.builds("{}|{}".format, inner, st.sampled_from(KNOWN["filters"])),
        st.builds("{} is {}".format, inner, st.sampled_from(KNOWN["tests"])),
        st.builds("{0[0]}.{0[1]}".format, st.sampled_from(calls)),
        st.builds("{}[{}:{}{}]".format, names, ends, ends, steps),
        st.builds("{} if {} else {}".format, inner, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("-{}".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({}, {})".format, inner, inner),
    )


@settings(
    max_examples=400,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.recursive(atoms, larger, max_leaves=4))
def test_random_expressions_render_as_in_jinja2(expression: str) -> None:
    template = "{{ " + expression + " }}"
    assert comparable(ours(template, **CONTEXT)) == comparable(theirs(template, **CONTEXT)), (
        template
    )
