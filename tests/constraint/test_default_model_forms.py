"""The default model, small as it is, fills whatever form it is held to: a whole engine, from the
conversation to the text, eight answers at a time."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import trio
from random_schemas import some_schemas

import ds4trio
from ds4trio.request import Choice, Conversation, GenerationRequest, JsonSchema, LarkGrammar, Regex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ds4trio.request import OutputFormat

#: All that the issue of structured output asks for take minutes.
EVERY = bool(os.environ.get("DS4TRIO_TEST_ALL_SCHEMAS"))
SCHEMAS = 200 if EVERY else 24
#: What a random schema lets through may be long: an array of arrays of words.
MAX_TOKENS = 1200
AT_ONCE = 8


def matches(pattern: str) -> Callable[[str], object]:
    return lambda text: re.fullmatch(pattern, text)


def obeys(schema: dict[str, Any]) -> Callable[[str], object]:
    def check(text: str) -> bool:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.validate(json.loads(text), schema, format_checker=checker)
        return True

    return check


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "born": {"type": "string", "format": "date"},
        "married": {"type": "boolean"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/age"}, "maxItems": 2},
    },
    "$defs": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "born", "married", "children"],
    "additionalProperties": False,
}
FORMS: list[tuple[OutputFormat, Callable[[str], object]]] = [
    (JsonSchema(PERSON), obeys(PERSON)),
    (JsonSchema({"enum": ["red", "green", 7, None]}), obeys({"enum": ["red", "green", 7, None]})),
    (Regex(r"\d{3}-\d{4}"), matches(r"\d{3}-\d{4}")),
    (Regex(r"(yes|no), because [a-z ]{5,30}\."), matches(r"(yes|no), because [a-z ]{5,30}\.")),
    (Regex("é{2,5}☕"), matches("é{2,5}☕")),
    (Choice(("Paris", "London", "São Paulo")), ("Paris", "London", "São Paulo").__contains__),
    (Choice(("a" * 40,)), ("a" * 40).__eq__),
    (LarkGrammar('start: "<" ("a" | "b")~3 ">"'), matches("<[ab]{3}>")),
    (
        LarkGrammar(r"""start: NAME "=" NUMBER ";"
NAME: /[a-z]{1,8}/
NUMBER: /[0-9]{1,4}/"""),
        matches(r"[a-z]{1,8}=[0-9]{1,4};"),
    ),
]


async def fill(engine: ds4trio.Service, number: int, form: OutputFormat) -> str:
    request = GenerationRequest(
        Conversation((ds4trio.Message("user", "Answer in the form that is asked for."),)),
        output_format=form,
        max_tokens=MAX_TOKENS,
        sampling=ds4trio.SamplingParams(temperature=0.7, seed=number),
    )
    async with engine.generate(request) as reply:
        events = [event async for event in reply]
    last = events[-1]
    assert isinstance(last, ds4trio.Finished)
    assert last.reason == "stop", (form, events)
    return "".join(event.text for event in events if isinstance(event, ds4trio.TextDelta))


@pytest.mark.model
async def test_the_default_model_fills_every_form(default_model: Path) -> None:
    forms = [*FORMS, *[(JsonSchema(schema), obeys(schema)) for schema in some_schemas(SCHEMAS)]]
    limiter = trio.CapacityLimiter(AT_ONCE)
    filled = 0

    async def one(number: int, form: OutputFormat, is_right: Callable[[str], object]) -> None:
        nonlocal filled
        async with limiter:
            text = await fill(engine, number, form)
        assert is_right(text), (form, text)
        filled += 1

    settings = ds4trio.Settings(max_running=AT_ONCE, threads=2)
    async with (
        ds4trio.open_engine(str(default_model), settings) as engine,
        trio.open_nursery() as nursery,
    ):
        for number, (form, is_right) in enumerate(forms):
            nursery.start_soon(one, number, form, is_right)
    assert filled == len(forms)
