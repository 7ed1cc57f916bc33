from __future__ import annotations

import re
from datetime import datetime

import jinja2
import pytest
from chat_rig import conversation, small_tokenizer
from jinja2.exceptions import SecurityError

from ds4trio.chat import sandbox
from ds4trio.chat.sandbox import compile_template, render_template
from ds4trio.chat.shield import ControlShield
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.errors import RequestError


def render(source: str, **variables: object) -> str:
    return render_template(compile_template(source), variables, ControlShield([]).disguise())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 3 * [1] | length }}", "ababab10243"),
        ("{{ missing }}", ""),
    ],
)
def test_templates_have_what_transformers_gives_them(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_time_is_known() -> None:
    year = re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert year is not None
    assert abs(int(year[0]) - datetime.now().year) <= 1


def test_templates_say_why_they_refuse() -> None:
    with pytest.raises(jinja2.TemplateError, match="no tools here"):
        render("{{ raise_exception('no tools here') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 1000000 }}",
        "{{ 9 ** 60 ** 60 }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_templates_cannot_do_harm(source: str) -> None:
    with pytest.raises((SecurityError, OverflowError)):
        render(source + "{{ messages }}", messages=[])


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_RENDERED_CHARS", 100)
    source = "{% for i in range(60) %}{{ 'ab' }}{% endfor %}"
    with pytest.raises(SecurityError, match="too long"):
        render(source)
    with pytest.raises(RequestError, match="too long"):
        TemplateChatFormat(source, small_tokenizer(), variables={}).render(conversation("a"))
