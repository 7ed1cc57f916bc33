"""The answers to one request, as they come: what the server's figures are made of."""

from __future__ import annotations

from ds4trio.events import Finished
from ds4trio.request import GenerationRequest, TextPrompt
from ds4trio.testing import ScriptedModel, open_scripted_engine


async def test_each_answer_has_its_own_gaps_between_tokens() -> None:
    """Several answers' tokens come side by side; only one answer's own have a gap between them."""
    asked = GenerationRequest(TextPrompt("Hi"), max_tokens=5, n=3, ignore_eos=True)
    async with open_scripted_engine(ScriptedModel()) as engine, engine.generate(asked) as reply:
        events = [event async for event in reply]
        gaps = reply.take_token_gaps()
        last = [event.usage for event in events if isinstance(event, Finished)][-1]
        assert last.generated_tokens == 15
        assert len(gaps) == 15 - 3
        assert all(gap > 0 for gap in gaps)
        assert reply.first_token_at is not None
        assert reply.take_token_gaps() == []
