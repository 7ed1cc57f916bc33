"""What no program can ask for, by the name of the argument that is wrong."""

from __future__ import annotations

import pytest

import ds4trio
from ds4trio.request import GenerationRequest, PromptBatch, TextPrompt
from ds4trio.testing import ScriptedModel, open_scripted_engine


@pytest.mark.parametrize("half", ["\ud800", "a\udfffb"])
async def test_half_a_character_is_refused(half: str) -> None:
    """No JSON can bring it, but a program can."""
    thought = ds4trio.Message("assistant", "Hi", reasoning=half)
    async with open_scripted_engine(ScriptedModel()) as engine:
        for ask, param in (
            (engine.complete(half), "prompt"),
            (engine.chat([{"role": "user", "content": half}]), "messages"),
            (engine.chat([thought]), "messages"),
        ):
            with pytest.raises(ds4trio.RequestError, match="surrogate") as caught:
                async with ask:
                    raise AssertionError("entered")
            assert caught.value.param == param


@pytest.mark.parametrize(("n", "param"), [(3, "n"), (1, "prompt")])
async def test_more_answers_than_there_can_ever_be(n: int, param: str) -> None:
    settings = ds4trio.Settings(max_running=1, max_waiting=1)
    prompts = PromptBatch((TextPrompt("a"),) * (3 if n == 1 else 1))
    async with open_scripted_engine(ScriptedModel(), settings) as engine:
        with pytest.raises(ds4trio.RequestError, match="3 answers at once") as caught:
            async with engine.generate(GenerationRequest(prompts, n=n)):
                raise AssertionError("entered")
        assert caught.value.param == param
