"""What a request says of how its answer is to be chosen, and what comes of it: every field in every
protocol that has it, from the socket to the text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from dialects import DIALECTS, Dialect, ask, every_dialect, whole_or_stream
from serving import saying, serving

from ds4trio.testing import END_ID, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = b"abc"
LIKED = {A: 2.0, B: 1.5, C: 1.0}
OTHERS = -20.0
not_messages = pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.name != "messages"], ids=lambda d: d.name
)


def liking(token_ids: Sequence[int]) -> list[float]:
    """Always the same: "a", then "b", then "c", then any other."""
    return [LIKED.get(token_id, OTHERS) for token_id in range(VOCAB_SIZE)]


#: Fields, and what is said in five tokens; worked out by hand. The prompt has an "a", but no "b".
GREEDY: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({}, "aaaaa"),
    # 2 - 1 < 1.5
    "logit_bias": ({"logit_bias": {str(A): -1}}, "bbbbb"),
    # a 2 | a 1, b 1.5 | a 1, b 0.5, c 1: the lowest id of equals
    "presence_penalty": ({"presence_penalty": 1}, "abaaa"),
    # a 2 | a 1.6 | a 1.2, b 1.5 | a 1.2, b 1.1 | a 0.8, b 1.1
    "frequency_penalty": ({"frequency_penalty": 0.4}, "aabab"),
    # a 2/1.5, b 1.5 | a 1.33, b 1
    "repetition_penalty": ({"repetition_penalty": 1.5}, "baaaa"),
}
WARM: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 1},
    "top_p": {"top_p": 0.01},
    "min_p": {"min_p": 1},
}


@not_messages
async def test_what_is_likeliest_as_it_is_asked_for(dialect: Dialect) -> None:
    async with serving(logits=liking) as server:
        for name, (fields, text) in GREEDY.items():
            answer = await ask(server, dialect, stream=False, temperature=0, max_tokens=5, **fields)
            assert answer.text == text, name


@every_dialect
async def test_filters_of_what_is_drawn(dialect: Dialect) -> None:
    """Without them, forty tokens would hardly be all the same: each is "a" in half of all cases."""
    known = ("top_k", "top_p") if dialect.name == "messages" else WARM
    async with serving(logits=liking) as server:
        free = await ask(server, dialect, stream=False, max_tokens=40)
        assert len(set(free.text)) > 1
        for name in known:
            answer = await ask(server, dialect, stream=False, max_tokens=40, **WARM[name])
            assert answer.text == "a" * 40, name


@not_messages
async def test_a_seed_makes_an_answer_again(dialect: Dialect) -> None:
    async with serving(logits=liking) as server:
        texts = [
            (await ask(server, dialect, stream=False, max_tokens=40, seed=seed)).text
            for seed in (5, 5, 6)
        ]
    assert texts[0] == texts[1] != texts[2]


@not_messages
@whole_or_stream
async def test_where_an_answer_ends(dialect: Dialect, stream: bool) -> None:
    """The model would say nothing at all."""
    async with serving(saying("", END_ID)) as server:
        forced = await ask(server, dialect, stream=stream, max_tokens=9, min_tokens=3)
        endless = await ask(server, dialect, stream=stream, max_tokens=9, ignore_eos=True)
    assert (forced.finish, forced.generated_tokens) == ("stop", 3)
    assert (endless.finish, endless.generated_tokens) == ("length", 9)


#: Where each protocol says that logprobs are wanted, and where they then are.
LOGPROBS: dict[str, dict[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 2},
    "completions": {"logprobs": 2},
    "responses": {"top_logprobs": 2},
}


@not_messages
async def test_logprobs_are_the_models_own(dialect: Dialect) -> None:
    """Before temperature and penalties: log-softmax of the logits, by hand."""
    total = math.log(
        sum(math.exp(value) for value in LIKED.values())
        + (VOCAB_SIZE - len(LIKED)) * math.exp(OTHERS)
    )
    fields = LOGPROBS[dialect.name] | {"temperature": 0, "max_tokens": 2, "logit_bias": {A: -1}}
    async with serving(logits=liking) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields("Hi", stream=False, **fields))
        _, answer = await client.json()
    if dialect.name == "completions":
        said = answer["choices"][0]["logprobs"]
        found = list(zip(said["tokens"], said["token_logprobs"], strict=True))
        likeliest = said["top_logprobs"][0]
    else:
        if dialect.name == "chat":
            tokens = answer["choices"][0]["logprobs"]["content"]
        else:
            tokens = answer["output"][0]["content"][0]["logprobs"]
        found = [(token["token"], token["logprob"]) for token in tokens]
        likeliest = {top["token"]: top["logprob"] for top in tokens[0]["top_logprobs"]}
    assert found == [("b", pytest.approx(1.5 - total, abs=1e-4))] * 2
    assert likeliest == {
        "a": pytest.approx(2 - total, abs=1e-4),
        "b": pytest.approx(1.5 - total, abs=1e-4),
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_several_answers_differ(path: str) -> None:
    dialect = next(dialect for dialect in DIALECTS if dialect.path == path)
    async with serving(logits=liking) as server, await server.connect() as client:
        fields = dialect.fields("Hi", stream=False, n=3, max_tokens=40, seed=1)
        await client.post(path, fields)
        _, answer = await client.json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = {choice.get("text") or choice["message"]["content"] for choice in choices}
    assert len(texts) == 3
    assert answer["usage"]["completion_tokens"] == 120
