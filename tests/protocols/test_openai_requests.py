"""Requests of OpenAI's endpoints: what both read, and what is refused by which name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from asking import CHAT, COMPLETIONS, asked, each_openai, parse, refused

from ds4trio.request import (
    Choice,
    Conversation,
    GenerationRequest,
    JsonSchema,
    LarkGrammar,
    Message,
    PromptBatch,
    Regex,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)

if TYPE_CHECKING:
    from ds4trio.protocols.wire import WireProtocol


def test_the_least_chat() -> None:
    parsed = parse(CHAT)
    assert parsed.generation == GenerationRequest(Conversation((Message("user", "Hello"),)))
    assert not parsed.stream


def test_the_least_completion_has_openais_sixteen_tokens() -> None:
    assert asked(COMPLETIONS) == GenerationRequest(TextPrompt("Once"), max_tokens=16)


@each_openai
def test_everything_that_both_serve_is_read(protocol: WireProtocol) -> None:
    parsed = parse(
        protocol,
        model="mine",
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.05,
        seed=-(2**63),
        presence_penalty=0.5,
        frequency_penalty=-2,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "7": 1.5},
        max_tokens=7,
        min_tokens=3,
        stop=["\n", "END"],
        ignore_eos=True,
        n=3,
        best_of=3,
        stream=True,
    )
    assert parsed.stream
    request = parsed.generation
    assert request.model == "mine"
    assert request.sampling == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.05,
        seed=-(2**63),
        presence_penalty=0.5,
        frequency_penalty=-2.0,
        repetition_penalty=1.1,
        logit_bias={5: -100.0, 7: 1.5},
    )
    assert (request.max_tokens, request.min_tokens) == (7, 3)
    assert request.stop == ("\n", "END")
    assert request.ignore_eos
    assert request.n == 3


@each_openai
def test_what_cannot_change_the_answer_is_ignored(protocol: WireProtocol) -> None:
    extras = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "stream_options": {"include_obfuscation": False, "continuous_usage_stats": True},
        "tools": [],
        "tool_choice": "auto",
        "n": 1,
        "best_of": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "stop_token_ids": [],
        "response_format": {"type": "text"},
        "never_heard_of": {"deep": [1, None]},
    }
    assert asked(protocol, **extras) == asked(protocol)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("", TextPrompt("")),
        (["Once"], TextPrompt("Once")),
        ([5, 0, 7], TokenPrompt((5, 0, 7))),
        ([[5, 0, 7]], TokenPrompt((5, 0, 7))),
        (["a", "b"], PromptBatch((TextPrompt("a"), TextPrompt("b")))),
        ([[1], [2, 3]], PromptBatch((TokenPrompt((1,)), TokenPrompt((2, 3))))),
        (["a", [2]], PromptBatch((TextPrompt("a"), TokenPrompt((2,))))),
    ],
)
def test_prompts_in_all_their_shapes(
    sent: object, read: TextPrompt | TokenPrompt | PromptBatch
) -> None:
    assert asked(COMPLETIONS, prompt=sent).prompt == read


def test_echo_and_logprobs_of_a_completion() -> None:
    """What lm-eval asks for."""
    request = asked(COMPLETIONS, prompt=[[5, 0]], echo=True, logprobs=1, max_tokens=1)
    assert (request.echo, request.logprobs, request.max_tokens) == (True, 1, 1)
    assert asked(COMPLETIONS, logprobs=0).logprobs == 0


def test_the_newer_name_for_max_tokens_wins() -> None:
    assert asked(CHAT, max_tokens=5, max_completion_tokens=9).max_tokens == 9
    assert asked(CHAT, max_tokens=5).max_tokens == 5


@each_openai
@pytest.mark.parametrize(("sent", "read"), [(-1, 0), (0, 0), (1, 1)])
def test_top_k_has_two_words_for_all(protocol: WireProtocol, sent: int, read: int) -> None:
    assert asked(protocol, top_k=sent).sampling.top_k == read


# --- what the answer must be ---

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@each_openai
@pytest.mark.parametrize(
    ("fields", "format_"),
    [
        ({"response_format": {"type": "json_object"}}, JsonSchema({})),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "P",
                        "description": "d",
                        "strict": True,
                        "schema": SCHEMA,
                    },
                }
            },
            JsonSchema(SCHEMA, "P", "d"),
        ),
        ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
        ({"guided_json": '{"type": "object"}'}, JsonSchema({"type": "object"})),
        ({"guided_regex": "[ab]+"}, Regex("[ab]+")),
        ({"guided_choice": ["yes", "no"]}, Choice(("yes", "no"))),
        ({"guided_grammar": 'start: "x"'}, LarkGrammar('start: "x"')),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, JsonSchema({})),
        ({"structured_outputs": {"regex": "a"}}, Regex("a")),
        ({"structured_outputs": {"choice": ["a"]}}, Choice(("a",))),
        ({"structured_outputs": {"grammar": "start: A"}}, LarkGrammar("start: A")),
        ({"structured_outputs": {}}, None),
    ],
)
def test_output_formats(protocol: WireProtocol, fields: dict[str, object], format_: object) -> None:
    assert asked(protocol, **fields).output_format == format_


@each_openai
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
    ],
)
def test_output_formats_that_cannot_be(
    protocol: WireProtocol, fields: dict[str, object], param: str
) -> None:
    assert refused(protocol, **fields).param == param


# --- what is refused, and by which name ---


@each_openai
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
        ("n", 129),
        ("best_of", 0),
        ("presence_penalty", -2.5),
        ("frequency_penalty", 2.5),
        ("repetition_penalty", 0),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"5": 100.5}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("guided_regex", 5),
    ],
)
def test_a_wrong_value_is_named(protocol: WireProtocol, field: str, value: object) -> None:
    error = refused(protocol, **{field: value})
    assert error.param == field
    assert error.code is None


@each_openai
@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop", ["a", ""], "stop[1]"),
        ("stop", ["a", 5], "stop[1]"),
        ("stop", ["a", "b" * 513], "stop[1]"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_inside_is_named_by_its_path(
    protocol: WireProtocol, field: str, value: object, param: str
) -> None:
    assert refused(protocol, **{field: value}).param == param


@each_openai
def test_min_tokens_must_fit_max_tokens(protocol: WireProtocol) -> None:
    assert refused(protocol, min_tokens=9, max_tokens=8).param == "min_tokens"
    assert asked(protocol, min_tokens=8, max_tokens=8).min_tokens == 8


@each_openai
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"stop_token_ids": [2]}, "stop_token_ids"),
    ],
)
def test_what_would_change_the_answer_but_is_not_served_is_refused_by_name(
    protocol: WireProtocol, fields: dict[str, object], param: str
) -> None:
    error = refused(protocol, **fields)
    assert (error.param, error.code) == (param, "unsupported_parameter")


def test_no_model_here_fills_in_before_a_given_end() -> None:
    error = refused(COMPLETIONS, suffix="The end.")
    assert (error.param, error.code) == ("suffix", "unsupported_parameter")
    assert asked(COMPLETIONS, suffix="") == asked(COMPLETIONS)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", []], "prompt[1]"),
        ([None], "prompt[0]"),
        ([True], "prompt[0]"),
        ([1, "a"], "prompt"),
        ([1, [2]], "prompt"),
        ([1, -1], "prompt[1]"),
        (["a"] * 4097, "prompt"),
        ([[1, 2.5]], "prompt[0][1]"),
    ],
)
def test_wrong_prompts(prompt: object, param: str) -> None:
    error = refused(COMPLETIONS, prompt=prompt)
    assert (error.param, error.code) == (param, None)


@pytest.mark.parametrize("logprobs", [-1, 21, True, "1"])
def test_wrong_logprobs_of_a_completion(logprobs: object) -> None:
    assert refused(COMPLETIONS, logprobs=logprobs).param == "logprobs"
