"""Bodies of every kind: whatever comes, it is a request or a refusal that names its reason."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pytest
from asking import (
    CHAT,
    COMPLETIONS,
    LEAST,
    MESSAGES,
    asked,
    each_openai,
    each_protocol,
    parse,
    refused,
)
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import RequestError
from ds4trio.protocols.anthropic_messages import MessageFields
from ds4trio.protocols.openai_chat import ChatFields
from ds4trio.protocols.openai_completions import CompletionFields
from ds4trio.protocols.wire import ParsedRequest

if TYPE_CHECKING:
    from ds4trio.protocols.wire import WireProtocol

FIELDS = {
    protocol: [field.encode_name for field in msgspec.structs.fields(struct)]
    for protocol, struct in (
        (CHAT, ChatFields),
        (COMPLETIONS, CompletionFields),
        (MESSAGES, MessageFields),
    )
}
each_field = pytest.mark.parametrize(
    ("protocol", "field"),
    [(protocol, field) for protocol, fields in FIELDS.items() for field in fields],
    ids=lambda x: x if isinstance(x, str) else x.name,
)


@each_field
def test_null_is_absent(protocol: WireProtocol, field: str) -> None:
    if field in LEAST[protocol.path]:
        assert refused(protocol, **{field: None}).param == field
    else:
        assert asked(protocol, **{field: None}) == asked(protocol)


@each_field
@pytest.mark.parametrize("value", [5, 1.5, "x", True, [], {}, [None], {"type": 5}], ids=str)
def test_whatever_a_field_holds_no_other_is_blamed(
    protocol: WireProtocol, field: str, value: object
) -> None:
    blamed: str | None = field
    try:
        parse(protocol, **{field: value})
    except RequestError as error:
        blamed = error.param
    assert blamed is not None
    assert blamed.startswith(field)


@each_protocol
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"hello", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b'{"temperature":NaN}', "not valid JSON"),
        (b"{}\0", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"model":"\\ud800"}', "not valid JSON"),
        (b'{"unheard":"\\ud800"}', "not valid JSON"),
        (b'{"model":"\\udc00x"}', "not valid JSON"),
        (b'{"model":"\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"unheard":"\xff"}', "not valid UTF-8 (byte 12)"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"hello"', "not a JSON object"),
    ],
    ids=lambda x: str(x[:24]),
)
def test_a_body_that_is_no_request(protocol: WireProtocol, body: bytes, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        protocol.parse(body, "served")
    assert says in caught.value.message
    assert caught.value.param is None


@each_openai
@pytest.mark.parametrize("digits", [30, 5000])
def test_a_number_beyond_all_bounds_is_named(protocol: WireProtocol, digits: int) -> None:
    body = b'{"seed":%b}' % (b"9" * digits)
    with pytest.raises(RequestError) as caught:
        protocol.parse(body, "served")
    assert caught.value.param == "seed"


@each_protocol
@pytest.mark.parametrize("body", [b'{"model":5,"model":"m"}', b'{"model":"m","model":5}'])
def test_a_wrong_value_counts_also_where_a_field_is_repeated(
    protocol: WireProtocol, body: bytes
) -> None:
    with pytest.raises(RequestError) as caught:
        protocol.parse(body, "served")
    assert caught.value.param == "model"


def test_messages_speak_of_json_types_not_pythons() -> None:
    error = refused(CHAT, max_tokens="many")
    assert error.message == "max_tokens: expected integer, got string"
    error = refused(CHAT, messages=[{"role": "user", "content": 5}])
    assert error.message == "messages[0].content: expected string or array, got integer"


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
names = st.sampled_from(
    [
        *["role", "content", "type", "text", "name", "include_usage", "function", "custom"],
        *["id", "input", "tool_use_id", "source", "schema", "json_schema", "format", "effort"],
        *["tool_calls", "arguments", "grammar", "definition", "tool_name", "input_schema"],
        *chain(*FIELDS.values()),
    ]
)
words = st.sampled_from(
    [
        *["user", "assistant", "tool", "system", "text", "none", "required", "function", "custom"],
        *["json_schema", "enabled", "high", "tool_use", "tool_result", "document", "any"],
    ]
)
json_values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=16,
)


@each_protocol
@given(value=st.dictionaries(names, json_values, max_size=6) | json_values, least=st.booleans())
def test_any_json_is_a_request_or_refused(
    protocol: WireProtocol, value: object, least: bool
) -> None:
    if least and isinstance(value, dict):
        value = LEAST[protocol.path] | value
    try:
        parsed = protocol.parse(json.dumps(value).encode(), "served")
    except RequestError:
        return
    assert isinstance(parsed, ParsedRequest)


blocks = st.dictionaries(names, json_values, max_size=4)


@pytest.mark.parametrize("protocol", [CHAT, MESSAGES], ids=lambda p: p.name)
@given(
    turns=st.lists(
        st.fixed_dictionaries(
            {"role": words, "content": json_values | st.lists(blocks, max_size=3)},
            optional={"tool_calls": st.lists(blocks, max_size=2), "tool_call_id": json_values},
        ),
        max_size=3,
    ),
    tools=st.lists(blocks, max_size=2),
)
def test_any_messages_are_a_request_or_refused(
    protocol: WireProtocol, turns: object, tools: object
) -> None:
    blamed: str | None = "messages"
    try:
        parse(protocol, messages=turns, tools=tools)
    except RequestError as error:
        blamed = error.param
    assert blamed is not None
    assert blamed.startswith(("messages", "tools"))


@pytest.mark.parametrize("depth", range(900, 1000, 3))
def test_what_is_nested_deeply_is_refused_or_read(depth: int) -> None:
    body = b'{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f",'
    body += b'"input":{"a":%b1%b}}]}]}' % (b"[" * depth, b"]" * depth)
    said = "nested too deeply"
    try:
        MESSAGES.parse(body, "served")
    except RequestError as error:
        said = error.message
    assert "nested too deeply" in said


@pytest.mark.parametrize("depth", [10, 200, 300])
def test_documents_within_documents_are_refused_or_read(depth: int) -> None:
    body = b'"Once."'
    for _ in range(depth):
        source = b'{"type":"content","content":%b}' % body
        body = b'[{"type":"document","source":%b}]' % source
    said = "nested too deeply"
    try:
        MESSAGES.parse(b'{"messages":[{"role":"user","content":%b}]}' % body, "served")
    except RequestError as error:
        said = error.message
    assert "nested too deeply" in said


@each_protocol
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: json.dumps(t).encode()))
def test_any_bytes_are_refused(protocol: WireProtocol, body: bytes) -> None:
    """(An empty object lacks its prompt, so no bytes of this kind are a request.)"""
    with pytest.raises(RequestError):
        protocol.parse(body, "served")
