"""What clients with evaluations in mind ask about tokens: ids, texts, and the tokenizer itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from serving import saying, serving

from ds4trio.chat.load import load_chat_format
from ds4trio.testing import BOS_ID, END_ID
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
RENDERED = [BOS_ID, *b"user: Hi\nassistant: "]


async def asked(method: str, path: str, body: object = None) -> tuple[int, Any]:
    async with (
        serving(saying("", END_ID), context_tokens=99) as server,
        await server.connect() as client,
    ):
        if method == "GET":
            await client.request("GET", path)
        else:
            await client.post(path, body)
        return await client.json()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "é"}, [BOS_ID, 0xC3, 0xA9]),
        ({"prompt": "é", "add_special_tokens": True}, [BOS_ID, 0xC3, 0xA9]),
        ({"prompt": "é", "add_special_tokens": False}, [0xC3, 0xA9]),
        ({"prompt": "", "add_special_tokens": False}, []),
        # So lm-eval finds out the id of what ends a text.
        ({"prompt": "<|end|>", "add_special_tokens": False}, [END_ID]),
        ({"prompt": "<|end|>"}, [BOS_ID, *b"<|end|>"]),
        ({"prompt": "a<|end|>", "add_special_tokens": False}, list(b"a<|end|>")),
        (HELLO, RENDERED),
        (HELLO | {"add_special_tokens": False, "add_generation_prompt": True}, RENDERED),
    ],
    ids=str,
)
async def test_tokens_of_a_text(body: dict[str, object], tokens: list[int]) -> None:
    answer = {"count": len(tokens), "max_model_len": 99, "tokens": tokens, "token_strs": None}
    assert await asked("POST", "/tokenize", body) == (200, answer)


async def test_each_tokens_own_text() -> None:
    body = {"prompt": "aé", "return_token_strs": True}
    _, answer = await asked("POST", "/tokenize", body)
    assert answer["token_strs"] == ["", "a", "\ufffd", "\ufffd"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", HELLO | {"add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
    ],
    ids=str,
)
async def test_what_is_refused_by_name(path: str, body: object, param: str) -> None:
    status, answer = await asked("POST", path, body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_the_text_of_tokens() -> None:
    body = {"tokens": [BOS_ID, *"né".encode(), END_ID, 10**30]}
    assert await asked("POST", "/detokenize", body) == (200, {"prompt": "né"})


async def test_what_a_client_needs_to_do_it_itself() -> None:
    status, info = await asked("GET", "/tokenizer_info")
    assert status == 200
    assert (info["bos_token"], info["eos_token"]) == ("<|bos|>", "<|end|>")
    assert info["model_max_length"] == 99


@pytest.mark.model
def test_the_default_models(default_model: Path) -> None:
    told = load_chat_format(default_model, load_tokenizer(default_model)).told
    assert told["eos_token"] == "<|im_end|>"
    assert told["bos_token"] == "<|im_start|>"
    assert "<|im_start|>" in (told["chat_template"] or "")
