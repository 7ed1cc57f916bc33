"""Answers of a whole engine, held to a format: by a model of noise, and by the default model."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schemas import SCHEMAS
from small_vocabulary import END, THINK_END, id_of, noisy_model, small_tokenizer, text_of

from ds4trio.constraint.grammar import GrammarCompiler
from ds4trio.constraint.vocabulary import Vocabulary
from ds4trio.engine.engine import Engine, open_engine
from ds4trio.engine.job import EndReason, EngineRequest, TokenEvent, TokensEnded
from ds4trio.models.registry import load_model
from ds4trio.request import Choice, JsonSchema, LarkGrammar, Regex, SamplingParams
from ds4trio.testing import ScriptedModel, StepGate
from ds4trio.text.load import load_tokenizer
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from ds4trio.constraint.grammar import CompiledGrammar
    from ds4trio.request import OutputFormat


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(small_tokenizer()))


def engine_of(model: ScriptedModel) -> AbstractAsyncContextManager[Engine]:
    return open_engine(lambda: model, threads=1, max_unread_tokens=5000)


def asking(
    grammar: CompiledGrammar | None, seed: int = 0, max_tokens: int = 6000, **more: Any
) -> EngineRequest:
    stop_ids = frozenset({id_of(END)})
    return EngineRequest(
        [1], SamplingParams(seed=seed), max_tokens, 0, stop_ids, constraint=grammar, **more
    )


async def answer(engine: Engine, request: EngineRequest) -> tuple[list[int], EndReason]:
    token_ids: list[int] = []
    async with engine.submit(request) as stream:
        while True:
            for event in await stream.receive():
                if isinstance(event, TokenEvent):
                    token_ids.append(event.token_id)
                elif isinstance(event, TokensEnded):
                    return token_ids, event.reason


@settings(max_examples=200)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
async def test_answers_obey_their_schema(
    compiler: GrammarCompiler, schema: dict[str, Any], seed: int
) -> None:
    grammar = compiler.compile(JsonSchema(schema))
    async with engine_of(noisy_model(seed)) as engine:
        token_ids, reason = await answer(engine, asking(grammar, seed))
    assert reason in (EndReason.COMPLETE, EndReason.STOP_ID)
    jsonschema.validate(
        json.loads(text_of(token_ids)),
        schema,
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )


WHOLE = [
    (Regex("[a-c]{3}-(x|yy)+"), lambda text: re.fullmatch("[a-c]{3}-(x|yy)+", text)),
    (
        LarkGrammar('start: "<" item ">"\nitem: /[0-9]{1,4}/ | start'),
        lambda t: t[0] + t[-1] == "<>",
    ),
    (Choice(("yes", "no", "ça va?")), lambda text: text in ("yes", "no", "ça va?")),
]


@pytest.mark.parametrize(("form", "is_right"), WHOLE)
async def test_other_formats(
    compiler: GrammarCompiler, form: OutputFormat, is_right: Callable[[str], object]
) -> None:
    async with engine_of(noisy_model()) as engine:
        for seed in range(20):
            token_ids, reason = await answer(engine, asking(compiler.compile(form), seed))
            assert reason in (EndReason.COMPLETE, EndReason.STOP_ID)
            assert is_right(text_of(token_ids))


async def test_neighbours_are_not_touched(compiler: GrammarCompiler) -> None:
    """And one grammar serves several at once."""
    grammar = compiler.compile(JsonSchema({"type": "array", "items": {"type": "integer"}}))
    requests = [
        asking(grammar if n % 2 else None, seed=n, max_tokens=60 if n % 2 == 0 else 600)
        for n in range(6)
    ]
    alone = []
    for request in requests:
        async with engine_of(noisy_model()) as engine:
            alone.append(await answer(engine, request))
    together: dict[int, tuple[list[int], EndReason]] = {}
    async with engine_of(noisy_model()) as engine, trio.open_nursery() as nursery:

        async def one(index: int) -> None:
            together[index] = await answer(engine, requests[index])

        for index in range(len(requests)):
            nursery.start_soon(one, index)
    assert [together[n] for n in range(len(requests))] == alone
    for n in (1, 3, 5):
        assert isinstance(json.loads(text_of(alone[n][0])), list)


async def test_thinking_is_free_and_the_answer_is_not(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Choice(("yes", "no")))
    end = id_of(THINK_END)
    async with engine_of(noisy_model()) as engine:
        for budget in (0, 1, 30):
            request = asking(grammar, thinking_end=(end,), thinking_budget=budget)
            token_ids, _ = await answer(engine, request)
            thought = token_ids.index(end)
            assert thought <= budget
            assert id_of(END) not in token_ids
            assert text_of(token_ids[thought + 1 :]) in ("yes", "no")


async def test_leaving_while_the_grammar_is_compiled(compiler: GrammarCompiler) -> None:
    """Case C65: nothing is computed, and the compiling thread's end has no effect."""
    compiling, go_on, done = trio.Event(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def slow(form: OutputFormat) -> CompiledGrammar:
        token.run_sync_soon(compiling.set)
        go_on.wait()
        try:
            return compiler.compile(form)
        finally:
            token.run_sync_soon(done.set)

    model = noisy_model()
    async with engine_of(model) as engine:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                grammar = await run_off_loop(slow, JsonSchema({"const": "slow"}))
                await answer(engine, asking(grammar))

            nursery.start_soon(ask)
            await compiling.wait()
            nursery.cancel_scope.cancel()
        assert (engine.stats.steps, engine.stats.running, engine.stats.waiting) == (0, 0, 0)
        go_on.set()
        await done.wait()
        assert not model.forwards
        token_ids, _ = await answer(engine, asking(compiler.compile(JsonSchema({"const": 1}))))
        assert text_of(token_ids) == "1"


async def test_leaving_while_it_decodes_leaves_the_grammar_as_it_was(
    compiler: GrammarCompiler,
) -> None:
    """Case C66."""
    gate = StepGate()
    model = ScriptedModel(
        lambda ids: small_tokenizer().encode("a")[0],
        gate=gate,
        vocab_size=small_tokenizer().vocab_size,
    )
    grammar = compiler.compile(Regex("a{40}"))
    async with engine_of(model) as engine:
        with gate.opened_at_exit():
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await answer(engine, asking(grammar))

                nursery.start_soon(ask)
                gate.release(7)
                await gate.reached(8)
                nursery.cancel_scope.cancel()
                nursery.start_soon(open_when_left, gate)
            assert len(model.forwards) == 8
            assert not model.live_states
            token_ids, reason = await answer(engine, asking(grammar))
    assert reason is EndReason.COMPLETE
    assert text_of(token_ids) == "a" * 40


async def open_when_left(gate: StepGate) -> None:
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    gate.open()


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"enum": ["France", "Germany", "Italy"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
        "landmarks": {
            "type": "array",
            "items": {"type": "string", "maxLength": 40},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["city", "country", "population", "landmarks"],
    "additionalProperties": False,
}


@pytest.mark.model
async def test_the_default_model_fills_a_schema(default_model: Path) -> None:
    tokenizer = load_tokenizer(default_model)
    compiler = GrammarCompiler(Vocabulary(tokenizer))
    question = "<|im_start|>user\nDescribe Paris, as JSON.<|im_end|>\n<|im_start|>assistant\n"
    request = EngineRequest(
        tokenizer.encode_with_control(question),
        SamplingParams(temperature=0),
        max_tokens=400,
        stop_ids=frozenset({tokenizer.control_tokens["<|im_end|>"]}),
        constraint=compiler.compile(JsonSchema(CITY)),
    )
    async with open_engine(lambda: load_model(default_model, device="cpu"), threads=2) as engine:
        token_ids, reason = await answer(engine, request)
    assert reason is EndReason.COMPLETE
    said = json.loads(b"".join(map(tokenizer.token_bytes, token_ids)))
    jsonschema.validate(said, CITY)
    assert (said["city"], said["country"]) == ("Paris", "France")
