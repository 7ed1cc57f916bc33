"""The examples do what they say."""

from __future__ import annotations

import os
import pty
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from tiny_llama import write_tiny_llama

from ds4trio.testing import ScriptedModel, StepGate, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import ds4trio

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    """What it defines."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_examples_are_short_and_tested(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 80
    assert f'"{file.stem}"' in Path(__file__).read_text()


async def test_embed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embed = example("embed")
    await embed["main"](str(tiny))
    said = capsys.readouterr().out
    for question in embed["QUESTIONS"]:
        assert f"{question}\n  " in said


async def test_an_answer_is_stopped_by_ctrl_c() -> None:
    answer = example("chat_with_cancel")["answer"]
    gate = StepGate()
    model = ScriptedModel(lambda token_ids: 97, gate=gate)
    shown: list[str] = []
    said: list[str] = []

    async def ask(engine: ds4trio.Service) -> None:
        said.append(await answer(engine, [{"role": "user", "content": "Hi"}], shown.append))

    async with open_scripted_engine(model) as engine, trio.open_nursery() as nursery:
        with gate.opened_at_exit():
            nursery.start_soon(ask, engine)
            gate.release(4)
            await gate.reached(5)
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked()
    assert said == ["aaaa"]
    assert "".join(shown) == "aaaa [stopped]\n"
    assert len(model.forwards) == 5


async def test_a_whole_answer() -> None:
    answer = example("chat_with_cancel")["answer"]
    shown: list[str] = []
    async with open_scripted_engine(ScriptedModel(lambda _: 97)) as engine:
        said = await answer(engine, [{"role": "user", "content": "Hi"}], shown.append)
    assert said == 512 * "a"
    assert "".join(shown) == said + "\n"


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        os.close(theirs)

    def read_until(self, prompt: bytes) -> bytes:
        said = b""
        while not said.endswith(prompt):
            said += os.read(self._ours, 65536)
        return said

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def chat(tiny: Path) -> Iterator[Terminal]:
    terminal = Terminal(str(EXAMPLES / "chat_with_cancel.py"), str(tiny))
    yield terminal
    terminal.close()


def test_ctrl_c_at_the_prompt_leaves(chat: Terminal) -> None:
    chat.read_until(b"> ")
    chat.type(b"Hi\n")
    chat.read_until(b"\n> ")
    chat.process.send_signal(signal.SIGINT)
    assert chat.process.wait() == 0
