"""The tools that ship for tests do what they say."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import torch
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.models.base import CausalLM, Chunk
from ds4trio.request import Conversation, GenerationRequest, Message
from ds4trio.testing import (
    BOS_ID,
    END_ID,
    ByteTokenizer,
    ForwardRow,
    PlainChatFormat,
    ScriptedModel,
    StepGate,
    alphabet,
)
from ds4trio.threads import run_worker_thread

if TYPE_CHECKING:
    from ds4trio.chat.format import ChatFormat
    from ds4trio.text.tokenizer import Tokenizer

TOKENIZER: Tokenizer = ByteTokenizer()
CHAT_FORMAT: ChatFormat = PlainChatFormat()
MODEL: CausalLM = ScriptedModel()


@given(text=st.text(), cuts=st.lists(st.integers(1, 4)))
def test_bytes_there_and_back(text: str, cuts: list[int]) -> None:
    token_ids = TOKENIZER.encode(text)
    assert bytes(token_ids) == text.encode()
    decoder, pieces = TOKENIZER.new_decoder(), []
    while token_ids:
        cut = cuts.pop() if cuts else 1
        pieces.append(decoder.feed(token_ids[:cut]))
        del token_ids[:cut]
    assert "".join(pieces) == text
    assert decoder.finish() == ""


def test_half_a_character_waits() -> None:
    decoder = TOKENIZER.new_decoder()
    euro = list("€".encode())
    assert [decoder.feed([i]) for i in euro] == ["", "", "€"]
    assert decoder.feed(euro[:2]) == ""
    assert decoder.finish() == "\ufffd"


@given(parts=st.lists(st.sampled_from(["<|bos|>", "<|end|>", "<|", "bos|>", "é", "x"])))
def test_control_tokens_come_only_from_templates(parts: list[str]) -> None:
    text, control = "".join(parts), TOKENIZER.control_tokens
    assert not {BOS_ID, END_ID} & set(TOKENIZER.encode(text))
    expected = [
        token_id
        for piece in re.split(r"(<\|bos\|>|<\|end\|>)", text)
        for token_id in ([control[piece]] if piece in control else piece.encode())
    ]
    assert TOKENIZER.encode_with_control(text) == expected


def test_parts() -> None:
    assert TOKENIZER.encode_parts(["a", END_ID, "<|end|>"]) == [97, END_ID, *b"<|end|>"]
    assert TOKENIZER.token_bytes(97) == b"a"
    assert TOKENIZER.token_bytes(END_ID) == b""
    assert TOKENIZER.token_bytes(300) == b""


def test_a_plain_conversation() -> None:
    messages = (Message("system", "Be."), Message("user", "<|end|>"))
    prompt = CHAT_FORMAT.render(GenerationRequest(Conversation(messages)))
    assert prompt.text == "system: Be.\nuser: <|end|>\nassistant: "
    assert prompt.token_ids == [BOS_ID, *prompt.text.encode()]
    assert CHAT_FORMAT.stop_ids == {END_ID}


def use_a_scripted_model() -> None:
    model = ScriptedModel(lambda token_ids: sum(token_ids) % 200)
    one, other = model.new_state(), model.new_state()
    logits = model.forward([Chunk(one, [5, 6], logit_rows=2), Chunk(other, [7], logit_rows=0)])
    assert logits.argmax(-1).tolist() == [5, 11]
    assert logits.shape == (2, model.vocab_size)
    assert logits.dtype == torch.float32
    logits = model.forward([Chunk(other, [8]), Chunk(one, [9])])
    assert logits.argmax(-1).tolist() == [15, 20]
    assert (one.length, other.length) == (3, 2)
    assert model.forwards[1] == [ForwardRow(1, 7, 1, (8,)), ForwardRow(0, 5, 2, (9,))]
    assert [[row.position for row in rows] for rows in model.rows_of(5)] == [[0], [2]]
    assert len(model.live_states) == 2
    del one, other
    assert not model.live_states


async def test_a_scripted_model_follows_the_protocol() -> None:
    await run_worker_thread(use_a_scripted_model, name="worker")


def test_the_alphabet_goes_on_for_ever() -> None:
    text = bytes(alphabet(range(n)) for n in range(60)).decode()
    assert text == ("abcdefghijklmnopqrstuvwxyz " * 3)[:60]


async def test_a_gate_holds_and_lets_go() -> None:
    gate = StepGate()
    passed: list[int] = []

    def work() -> None:
        for n in range(1, 8):
            gate.hold()
            passed.append(n)

    thread = threading.Thread(target=work)
    thread.start()
    with gate.opened_at_exit():
        await gate.reached(1)
        assert (gate.entered, passed) == (1, [])
        gate.release()
        await gate.reached(2)
        assert passed == [1]
        gate.release(3)
        await gate.reached(5)
        await gate.reached(3)
        assert passed == [1, 2, 3, 4]
    thread.join()
    assert passed == [1, 2, 3, 4, 5, 6, 7]
    gate.shut()
    thread = threading.Thread(target=gate.hold)
    thread.start()
    await gate.reached(8)
    gate.release()
    thread.join()


async def test_waiting_at_a_gate_can_be_cancelled() -> None:
    gate = StepGate()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.reached, 1)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    gate.open()
    gate.hold()
    await gate.reached(1)
