"""A language model inside a Trio program: what an embedder does, and what ends what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest
import trio
import trio.testing
from tiny_llama import write_tiny_llama

import ds4trio
from ds4trio.errors import ContextOverflowError
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    Regex,
    TextPrompt,
    ToolSpec,
)
from ds4trio.testing import (
    ALPHABET,
    END_ID,
    ByteTokenizer,
    ScriptedModel,
    StepGate,
    open_scripted_engine,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HI = [{"role": "user", "content": "Hi"}]
#: As `PlainChatFormat` and `ByteTokenizer` write it: one token a byte, and one before.
HI_TOKENS = 1 + len("user: Hi\nassistant: ")


def spoken(prompt_tokens: int, tokens: int) -> str:
    """What the scripted model says after so many tokens."""
    start = prompt_tokens % len(ALPHABET)
    return (ALPHABET.decode() * (tokens // len(ALPHABET) + 2))[start : start + tokens]


async def let_go(model: ScriptedModel) -> None:
    """Nothing is computed any more, and nothing is held."""
    await trio.testing.wait_all_tasks_blocked(0.005)
    forwards = len(model.forwards)
    await trio.testing.wait_all_tasks_blocked(0.005)
    assert len(model.forwards) == forwards
    assert not model.live_states


async def test_the_events_of_a_chat() -> None:
    async with (
        open_scripted_engine(ScriptedModel()) as engine,
        engine.chat(HI, max_tokens=30) as reply,
    ):
        events = [event async for event in reply]
        with pytest.raises(trio.EndOfChannel):
            await reply.receive()
    progress = [event for event in events if isinstance(event, ds4trio.PromptProgress)]
    steps = [(event.done, event.total) for event in progress]
    assert steps == [(0, HI_TOKENS), (HI_TOKENS, HI_TOKENS)]
    text = "".join(event.text for event in events if isinstance(event, ds4trio.TextDelta))
    assert text == spoken(HI_TOKENS, 30)
    usage = ds4trio.Usage(prompt_tokens=HI_TOKENS, generated_tokens=30)
    assert events[-1] == ds4trio.Finished("length", usage)


async def test_text_is_the_rest_of_the_answer() -> None:
    async with open_scripted_engine(ScriptedModel()) as engine:
        async with engine.complete("abc", max_tokens=5) as reply:
            assert await reply.text() == spoken(4, 5)
            assert await reply.text() == ""
        async with engine.complete([97, 98], max_tokens=5) as reply:
            assert await reply.text() == spoken(2, 5)
        message = ds4trio.Message("user", "Hi")
        async with engine.chat([message], max_tokens=50, stop=["q", "ok"]) as reply:
            assert await reply.text() == spoken(HI_TOKENS, 50).partition("q")[0]


async def test_messages_that_are_none() -> None:
    async with open_scripted_engine(ScriptedModel()) as engine:
        for message in ({"content": "Hi"}, {"role": "user"}, {"role": "alien", "content": "Hi"}):
            with pytest.raises(ds4trio.RequestError):
                engine.chat([message])


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [([], 5), ([-1], 5), ([99999], 5), ([97] * 5000, 5), ("a", 0)]
)
async def test_requests_that_cannot_be(prompt: str | list[int], max_tokens: int) -> None:
    model = ScriptedModel()
    async with open_scripted_engine(model) as engine:
        with pytest.raises(ds4trio.RequestError):
            async with engine.complete(prompt, max_tokens=max_tokens):
                raise AssertionError("entered")
        async with engine.complete("a", max_tokens=2) as reply:
            assert await reply.text() == spoken(2, 2)
        await let_go(model)


# --- leaving ---


async def test_leaving_the_loop_and_the_block() -> None:
    model = ScriptedModel()
    async with open_scripted_engine(model) as engine:
        async with engine.chat(HI) as reply:
            async for event in reply:
                if isinstance(event, ds4trio.TextDelta):
                    break
        assert reply.report is not None, "the worker has let go when the block is left"
        assert reply.report.release_s is not None
        await let_go(model)


async def test_a_deadline_around_the_block(mock_clock: trio.testing.MockClock) -> None:
    gate = StepGate()
    model = ScriptedModel(gate=gate)
    left = trio.Event()

    async def ask(engine: ds4trio.Service) -> None:
        with trio.move_on_after(5) as scope:
            async with engine.chat(HI) as reply:
                await reply.text()
        assert scope.cancelled_caught
        left.set()

    async with open_scripted_engine(model) as engine, trio.open_nursery() as nursery:
        with gate.opened_at_exit():
            nursery.start_soon(ask, engine)
            gate.release(4)
            await gate.reached(5)
            mock_clock.jump(5)
            await trio.testing.wait_all_tasks_blocked()
            assert not left.is_set(), "the block waits for the forward under way"
            gate.open()
            await left.wait()
        assert len(model.forwards) == 5
        await let_go(model)


async def test_fifty_at_once_and_their_nursery_cancelled() -> None:
    model = ScriptedModel()
    settings = ds4trio.Settings(max_running=8)
    async with open_scripted_engine(model, settings) as engine:
        begun = 0

        async def ask() -> None:
            nonlocal begun
            async with engine.chat(HI) as reply:
                await reply.receive()
                begun += 1
                await reply.text()

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
            while begun < 8:
                await trio.testing.wait_all_tasks_blocked(0.001)
            nursery.cancel_scope.cancel()
        assert engine.engine.stats.running == engine.engine.stats.waiting == 0
        await let_go(model)
        async with engine.complete("a", max_tokens=2) as reply:
            assert await reply.text() == spoken(2, 2)


async def test_an_error_in_the_block_ends_the_work_and_comes_out_as_it_is() -> None:
    model = ScriptedModel()

    async def fail(engine: ds4trio.Service) -> None:
        async with engine.chat(HI) as reply:
            await reply.receive()
            raise ZeroDivisionError

    async with open_scripted_engine(model) as engine:
        with pytest.raises(ZeroDivisionError):
            await fail(engine)
        await let_go(model)


async def test_a_reader_that_stops_reading_does_not_run_ahead() -> None:
    model = ScriptedModel()
    async with open_scripted_engine(model) as engine:
        async with engine.chat(HI) as reply:
            await reply.receive()
            await trio.testing.wait_all_tasks_blocked(0.05)
            behind = len(model.forwards)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(model.forwards) == behind, "it waits for its reader"
            async with engine.complete("a", max_tokens=5) as other:
                assert await other.text() == spoken(2, 5), "nobody else does"
        await let_go(model)


async def test_the_queue_is_full() -> None:
    gate = StepGate()
    settings = ds4trio.Settings(max_running=1, max_waiting=1)
    async with (
        open_scripted_engine(ScriptedModel(gate=gate), settings) as engine,
        trio.open_nursery() as nursery,
    ):
        with gate.opened_at_exit():

            async def ask() -> None:
                async with engine.complete("a", max_tokens=2) as reply:
                    assert await reply.text() == spoken(2, 2)

            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await gate.reached(1)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ds4trio.OverloadedError):
                async with engine.complete("a"):
                    raise AssertionError("entered")


async def test_the_worker_dies() -> None:
    def script(token_ids: Sequence[int]) -> int:
        if len(token_ids) > 20:
            raise ZeroDivisionError("a bug in the model")
        return END_ID if len(token_ids) > 30 else 97

    heard: list[ds4trio.EngineFailed] = []

    async def ask_and_go_on() -> None:
        async with open_scripted_engine(ScriptedModel(script)) as engine:
            try:
                async with engine.complete("a") as reply:
                    await reply.text()
            except ds4trio.EngineFailed as error:
                heard.append(error)
            await trio.sleep_forever()

    with pytest.raises(ds4trio.EngineFailed) as caught:
        await ask_and_go_on()
    assert "ZeroDivisionError" in heard[0].message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- more than one ---


async def test_two_engines_in_one_process() -> None:
    async with (
        open_scripted_engine(ScriptedModel()) as one,
        open_scripted_engine(ScriptedModel(lambda token_ids: 120)) as two,
    ):
        texts: dict[str, str] = {}

        async def ask(name: str, engine: ds4trio.Service) -> None:
            async with engine.complete("abc", max_tokens=40) as reply:
                texts[name] = await reply.text()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one", one)
            nursery.start_soon(ask, "two", two)
    assert texts == {"one": spoken(4, 40), "two": "x" * 40}


async def test_two_servers_in_one_process() -> None:
    """Each with its own engine, name and figures; one ends, the other goes on."""
    settings = ds4trio.Settings(port=0)
    first_scope = trio.CancelScope()
    ended = trio.Event()

    async def serve_first(task_status: trio.TaskStatus[list[str]]) -> None:
        with first_scope:
            await ds4trio.serve(one, settings, task_status=task_status)
        ended.set()

    async with (
        open_scripted_engine(ScriptedModel(), ds4trio.Settings(served_model_name="one")) as one,
        open_scripted_engine(ScriptedModel(), ds4trio.Settings(served_model_name="two")) as two,
        httpx.AsyncClient(trust_env=False) as client,
        trio.open_nursery() as nursery,
    ):
        (first,) = await nursery.start(serve_first)
        (second,) = await nursery.start(ds4trio.serve, two, settings)
        assert first != second
        for url, name in ((first, "one"), (second, "two"), (second, "two")):
            answer = await client.post(f"{url}/v1/completions", json={"prompt": "abc"})
            assert answer.json()["model"] == name
            assert answer.json()["choices"][0]["text"] == spoken(4, 16)
        counted = [(await client.get(f"{url}/metrics")).text for url in (first, second)]
        assert "\nds4trio_generated_tokens_total 16.0" in counted[0]
        assert "\nds4trio_generated_tokens_total 32.0" in counted[1]
        first_scope.cancel()
        await ended.wait()
        with pytest.raises(httpx.TransportError):
            await client.get(f"{first}/health")
        assert (await client.get(f"{second}/health")).status_code == 200
        nursery.cancel_scope.cancel()


# --- a real model ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A chat model's, and a base model's."""
    home = tmp_path_factory.mktemp("models")
    return write_tiny_llama(home / "chat"), write_tiny_llama(home / "base", chat=False)


async def test_two_real_engines(folders: tuple[Path, Path]) -> None:
    settings = ds4trio.Settings(threads=1)
    greedy = ds4trio.SamplingParams(temperature=0)
    chat, base = folders
    async with (
        ds4trio.open_engine(str(chat), settings) as one,
        ds4trio.open_engine(str(base), settings) as two,
    ):
        assert (one.name, two.name) == ("chat", "base")
        texts = []
        for engine in (one, two):
            async with engine.complete("Hello", max_tokens=20, sampling=greedy) as reply:
                texts.append(await reply.text())
        assert texts[0] == texts[1], "they have the same weights"
        async with one.chat(HI, max_tokens=5) as reply:
            await reply.text()
        with pytest.raises(ds4trio.RequestError, match="no chat template"):
            async with two.chat(HI):
                raise AssertionError("entered")


async def test_the_tool_whose_calls_nothing_can_be_is_blamed(folders: tuple[Path, Path]) -> None:
    """All that an answer may be is one grammar; of which part it is the fault is found out."""
    good = ToolSpec("good", param="tools[0].parameters")
    bad = ToolSpec("bad", parameters={"properties": {"a": {"pattern": "("}}}, param="tools[1].x")
    prompt = Conversation((ds4trio.Message("user", "Hi"),))
    cases: list[tuple[GenerationRequest, str]] = [
        (GenerationRequest(prompt, tools=(good, bad), tool_choice="required"), "tools[1].x"),
        (
            GenerationRequest(prompt, tools=(good,), output_format=Regex("(", "the_regex")),
            "the_regex",
        ),
    ]
    async with ds4trio.open_engine(str(folders[0]), ds4trio.Settings(threads=1)) as engine:
        for request, param in cases:
            with pytest.raises(ds4trio.RequestError, match="cannot be used") as caught:
                async with engine.generate(request):
                    raise AssertionError("entered")
            assert caught.value.param == param


async def test_a_model_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ds4trio.LoadError, match="no config"):
        async with ds4trio.open_engine(str(tmp_path)):
            raise AssertionError("entered")


async def test_a_text_that_cannot_fit_is_not_even_encoded() -> None:
    class Unasked(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            raise AssertionError("encoded")

    async with open_scripted_engine(ScriptedModel()) as engine:
        unasked = replace(engine, tokenizer=Unasked())
        with pytest.raises(ContextOverflowError, match="at least 200000"):
            async with unasked.complete("a" * 200_000):
                raise AssertionError("entered")
        with pytest.raises(ContextOverflowError, match="at least 200000"):
            async with unasked.chat([{"role": "user", "content": "a" * 200_000}]):
                raise AssertionError("entered")
        # A shorter one is counted.
        with pytest.raises(ContextOverflowError, match="4097"):
            async with engine.complete("a" * 4096):
                raise AssertionError("entered")
        assert len(await engine.prompt_ids(GenerationRequest(TextPrompt("a" * 4096)))) == 4097
