"""Every field of the official clients' request types is read, ignored on purpose, or refused by
name: one that a later client brings makes these tests fail with its name."""

from __future__ import annotations

import json

import pytest
from sdk_endpoints import ENDPOINTS, HELLO, MESSAGES, RESPONSES, SCHEMA, Endpoint
from sdk_types import fields_of

from ds4trio.errors import RequestError
from ds4trio.protocols.anthropic_messages import AnthropicMessages

each_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.path[4:])
#: What the types of Anthropic's clients have no more, and older ones send.
OLDER = {
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "output_format": {"type": "json_schema", "schema": SCHEMA},
}


@each_endpoint
def test_every_field_is_in_one_list(endpoint: Endpoint) -> None:
    lists = [*endpoint.read, *endpoint.ignored, *endpoint.refused]
    assert sorted(lists) == sorted(fields_of(*endpoint.types))


def each_field(of: str) -> pytest.MarkDecorator:
    cases = [(endpoint, name) for endpoint in ENDPOINTS for name in getattr(endpoint, of)]
    return pytest.mark.parametrize(
        ("endpoint", "name"), cases, ids=lambda x: x if isinstance(x, str) else x.path[4:]
    )


@each_field("read")
def test_a_field_that_is_read_has_an_effect(endpoint: Endpoint, name: str) -> None:
    beside = endpoint.beside.get(name, {})
    assert endpoint.effect(beside | {name: endpoint.read[name]}) != endpoint.effect(beside)


@each_field("ignored")
def test_a_field_that_is_ignored_has_none(endpoint: Endpoint, name: str) -> None:
    assert endpoint.effect({name: endpoint.ignored[name]}) == endpoint.effect({})


@each_field("refused")
def test_a_field_that_is_refused_is_named(endpoint: Endpoint, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        endpoint.parse({name: endpoint.refused[name]})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@each_endpoint
def test_all_that_is_read_may_stand_together(endpoint: Endpoint) -> None:
    together = endpoint.read | endpoint.ignored
    if endpoint is RESPONSES:
        together |= {"store": True}  # which what runs in the background needs
    assert endpoint.parse(together).stream


def test_what_messages_read_before() -> None:
    for name, value in OLDER.items():
        assert MESSAGES.effect({name: value}) != MESSAGES.effect({})


def test_a_conversation_is_counted_also_where_it_would_not_be_summarized() -> None:
    """As its documentation says: counting ignores it."""
    body = json.dumps({"messages": HELLO, "compaction": {"type": "summarize"}}).encode()
    assert AnthropicMessages().parse_count_tokens(body).max_tokens is None
