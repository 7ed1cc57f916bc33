"""Requests of OpenAI's endpoints: what is read, what is ignored, what is refused by which name."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import RequestError
from ds4trio.protocols.openai_chat import ChatFields, OpenAIChat
from ds4trio.protocols.openai_completions import CompletionFields, OpenAICompletions
from ds4trio.protocols.table import PROTOCOLS
from ds4trio.protocols.wire import ParsedRequest
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    Message,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)

if TYPE_CHECKING:
    from ds4trio.protocols.wire import WireProtocol

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ONCE: dict[str, Any] = {"prompt": "Once"}
#: The least that each endpoint can be asked.
LEAST: dict[str, dict[str, Any]] = {OpenAIChat.path: HELLO, OpenAICompletions.path: ONCE}
FIELDS = {
    path: [field.encode_name for field in msgspec.structs.fields(struct)]
    for path, struct in ((OpenAIChat.path, ChatFields), (OpenAICompletions.path, CompletionFields))
}

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda p: p.name)
each_field = pytest.mark.parametrize(
    ("protocol", "field"),
    [(PROTOCOLS[path], field) for path, fields in FIELDS.items() for field in fields],
    ids=lambda x: x if isinstance(x, str) else x.name,
)


def parse(protocol: WireProtocol, **fields: object) -> ParsedRequest:
    return protocol.parse(json.dumps(LEAST[protocol.path] | fields).encode(), "served")


def asked(protocol: WireProtocol, **fields: object) -> GenerationRequest:
    return parse(protocol, **fields).generation


def refused(protocol: WireProtocol, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(protocol, **fields)
    error = caught.value
    assert error.status == 400
    assert error.param is None or error.message.startswith(error.param + ": ")
    return error


# --- what is read ---


def test_the_least_chat() -> None:
    parsed = parse(OpenAIChat())
    assert parsed.generation == GenerationRequest(Conversation((Message("user", "Hello"),)))
    assert not parsed.stream


def test_the_least_completion_has_openais_sixteen_tokens() -> None:
    assert asked(OpenAICompletions()) == GenerationRequest(TextPrompt("Once"), max_tokens=16)


@each_protocol
def test_everything_that_is_served_is_read(protocol: WireProtocol) -> None:
    parsed = parse(
        protocol,
        model="mine",
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.05,
        seed=-(2**63),
        max_tokens=7,
        min_tokens=3,
        stop=["\n", "END"],
        ignore_eos=True,
        stream=True,
    )
    assert parsed.stream
    request = parsed.generation
    assert request.model == "mine"
    assert request.sampling == SamplingParams(0.0, 0.5, 40, 0.05, -(2**63))
    assert (request.max_tokens, request.min_tokens) == (7, 3)
    assert request.stop == ("\n", "END")
    assert request.ignore_eos


@each_protocol
def test_what_cannot_change_the_answer_is_ignored(protocol: WireProtocol) -> None:
    extras = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "stream_options": {"include_obfuscation": False, "continuous_usage_stats": True},
        "reasoning_effort": "high",
        "tools": [],
        "tool_choice": "auto",
        "n": 1,
        "best_of": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "never_heard_of": {"deep": [1, None]},
    }
    assert asked(protocol, **extras) == asked(protocol)


def test_a_client_that_names_tools_only_to_forbid_them_is_served() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert asked(OpenAIChat(), tools=tools, tool_choice="none") == asked(OpenAIChat())


@each_field
def test_null_is_absent(protocol: WireProtocol, field: str) -> None:
    if field in LEAST[protocol.path]:
        assert refused(protocol, **{field: None}).param == field
    else:
        assert asked(protocol, **{field: None}) == asked(protocol)


def test_null_is_absent_within_a_message_too() -> None:
    message = {"role": "user", "content": None, "name": None, "tool_calls": None}
    assert asked(OpenAIChat(), messages=[message]).prompt == Conversation((Message("user", ""),))


def test_messages_in_all_their_shapes() -> None:
    prompt = asked(
        OpenAIChat(),
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a\n"}], "name": "Ann"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {
                "role": "user",
                "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
            },
            {"role": "system", "content": "\u0000"},
        ],
    ).prompt
    assert prompt == Conversation(
        (
            Message("system", "Be brief."),
            Message("user", "a\n", "Ann"),
            Message("assistant", ""),
            Message("user", "bc"),
            Message("system", "\u0000"),
        )
    )


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("", TextPrompt("")),
        (["Once"], TextPrompt("Once")),
        ([5, 0, 7], TokenPrompt((5, 0, 7))),
        ([[5, 0, 7]], TokenPrompt((5, 0, 7))),
    ],
)
def test_prompts_in_all_their_shapes(sent: object, read: TextPrompt | TokenPrompt) -> None:
    assert asked(OpenAICompletions(), prompt=sent).prompt == read


def test_the_newer_name_for_max_tokens_wins() -> None:
    assert asked(OpenAIChat(), max_tokens=5, max_completion_tokens=9).max_tokens == 9
    assert asked(OpenAIChat(), max_tokens=5).max_tokens == 5


@each_protocol
@pytest.mark.parametrize(("sent", "read"), [(-1, 0), (0, 0), (1, 1)])
def test_top_k_has_two_words_for_all(protocol: WireProtocol, sent: int, read: int) -> None:
    assert asked(protocol, top_k=sent).sampling.top_k == read


# --- what is refused, and by which name ---


@each_protocol
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("seed", "1"),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["x"] * 17),
        ("ignore_eos", "yes"),
        ("stream", 1),
        ("stream_options", True),
        ("n", 0),
        ("presence_penalty", -2.5),
        ("logit_bias", {"5": "x"}),
    ],
)
def test_a_wrong_value_is_named(protocol: WireProtocol, field: str, value: object) -> None:
    error = refused(protocol, **{field: value})
    assert error.param == field
    assert error.code is None


@each_protocol
@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop", ["a", ""], "stop[1]"),
        ("stop", ["a", 5], "stop[1]"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_inside_is_named_by_its_path(
    protocol: WireProtocol, field: str, value: object, param: str
) -> None:
    assert refused(protocol, **{field: value}).param == param


@each_protocol
def test_min_tokens_must_fit_max_tokens(protocol: WireProtocol) -> None:
    assert refused(protocol, min_tokens=9, max_tokens=8).param == "min_tokens"
    assert asked(protocol, min_tokens=8, max_tokens=8).min_tokens == 8


@each_protocol
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -0.1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": -100}),
        ("stop_token_ids", [2]),
        ("guided_json", {"type": "object"}),
    ],
)
def test_what_would_change_the_answer_but_is_not_served_is_refused_by_name(
    protocol: WireProtocol, field: str, value: object
) -> None:
    error = refused(protocol, **{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].role"),
        (
            {"messages": [*HELLO["messages"], {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[1].tool_calls",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is it?"},
                            {"type": "image_url", "image_url": {"url": "data:,"}},
                        ],
                    }
                ]
            },
            "messages[0].content[1].type",
        ),
    ],
)
def test_what_chat_does_not_serve(fields: dict[str, object], param: str) -> None:
    error = refused(OpenAIChat(), **fields)
    assert (error.param, error.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ["a", "b"]),
        ("prompt", [[1], [2]]),
        ("best_of", 2),
        ("echo", True),
        ("logprobs", 0),
        ("suffix", "The end."),
    ],
)
def test_what_completions_do_not_serve(field: str, value: object) -> None:
    error = refused(OpenAICompletions(), **{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        ([None], "messages[0]"),
        (["Hello"], "messages[0]"),
        ([{"content": "Hello"}], "messages[0].role"),
        ([{"role": "wizard", "content": "Hello"}], "messages[0].role"),
        ([*HELLO["messages"], {"role": 5}], "messages[1].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "messages[0].content[0].text",
        ),
        ([{"role": "user", "content": "", "name": 5}], "messages[0].name"),
    ],
)
def test_wrong_messages(messages: object, param: str) -> None:
    error = refused(OpenAIChat(), messages=messages)
    assert (error.param, error.code) == (param, None)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([None], "prompt[0]"),
        ([True], "prompt[0]"),
        ([1, "a"], "prompt"),
        ([1, [2]], "prompt"),
        ([1, -1], "prompt[1]"),
        ([[1, 2.5]], "prompt[0][1]"),
    ],
)
def test_wrong_prompts(prompt: object, param: str) -> None:
    error = refused(OpenAICompletions(), prompt=prompt)
    assert (error.param, error.code) == (param, None)


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


# --- bodies that are no requests ---


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


@each_protocol
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
    error = refused(OpenAIChat(), max_tokens="many")
    assert error.message == "max_tokens: expected integer, got string"
    error = refused(OpenAIChat(), messages=[{"role": "user", "content": 5}])
    assert error.message == "messages[0].content: expected string or array, got integer"


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
names = st.sampled_from(
    ["role", "content", "type", "text", "name", "include_usage", *chain(*FIELDS.values())]
)
json_values = st.recursive(
    scalars | st.sampled_from(["user", "text", "none"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
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


@each_protocol
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: json.dumps(t).encode()))
def test_any_bytes_are_refused(protocol: WireProtocol, body: bytes) -> None:
    """(An empty object lacks its prompt, so no bytes of this kind are a request.)"""
    with pytest.raises(RequestError):
        protocol.parse(body, "served")
