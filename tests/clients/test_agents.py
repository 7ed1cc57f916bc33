"""Coding agents complete a turn with a tool, and let go when they are interrupted.

An optional check of those that are installed: Claude Code 2.1, Codex 0.171 and pi 1.6 are known to
pass.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from agents import AGENTS, AGENTS_VARIABLE, CODEX, search_path
from serving import serving, until
from talking import ENDLESS, talking, talking_format

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agents import Agent
    from serving import Server
    from talking import Messages

#: Only a shell makes the result of it.
COMMAND = "echo sum=$((6*7))"
RESULT = re.compile(r"sum=\d+")


def needs(agent: Agent) -> pytest.MarkDecorator:
    reason = f"{agent.program} is neither on PATH nor in {AGENTS_VARIABLE}"
    return pytest.mark.skipif(agent.found() is None, reason=reason)


each_agent = pytest.mark.parametrize(
    "agent", [pytest.param(agent, marks=needs(agent), id=agent.name) for agent in AGENTS]
)


def uses_shell(agent: Agent) -> Callable[[Messages], str]:
    """An answer that first calls the shell, then tells what it said."""
    name, argument = agent.shell
    call = json.dumps({"name": name, "arguments": {argument: COMMAND}})

    def answer(messages: Messages) -> str:
        for role, content in reversed(messages):
            if role == "tool" and (told := RESULT.search(content)):
                return f"The shell says {told[0]}."
        return f"<think>By shell.</think><tool_call>{call}</tool_call>"

    return answer


@asynccontextmanager
async def started(
    agent: Agent, server: Server, folder: Path, prompt: str
) -> AsyncIterator[trio.Process]:
    program = agent.found()
    assert program is not None
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    environment = {"PATH": search_path(), "HOME": str(home), **agent.prepare(home, server.url)}
    process = await trio.lowlevel.open_process(
        [program, *agent.flags, prompt],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()


async def output(process: trio.Process) -> str:
    assert process.stdout is not None
    return b"".join([piece async for piece in process.stdout]).decode()


def ended(figures: dict[str, float], agent: Agent) -> dict[str, float]:
    """The agent's requests, by how they ended."""
    name = re.compile(r'ds4trio_requests_total\{outcome="(\w+)",protocol="(\w+)".*')
    found: dict[str, float] = {}
    for sample, value in figures.items():
        if (told := name.fullmatch(sample)) and told[2] == agent.protocol:
            found[told[1]] = found.get(told[1], 0) + value
    return found


serving_agents = partial(
    serving, chat_format=talking_format(), context_tokens=200_000, prefill_chunk_tokens=100_000
)


@each_agent
async def test_a_turn_with_a_tool(agent: Agent, tmp_path: Path) -> None:
    async with serving_agents(talking(uses_shell(agent))) as server:
        async with started(agent, server, tmp_path, "What is 6*7?") as process:
            said = await output(process)
            assert await process.wait() == 0
        assert "The shell says sum=42." in said
        await server.idle()
        assert ended(await server.metrics(), agent).keys() == {"completed"}


@needs(CODEX)
async def test_codex_applies_a_patch(tmp_path: Path) -> None:
    """A custom tool, whose input is no JSON; Codex offers it to the models that it knows."""
    patch = "*** Begin Patch\n*** Add File: new.txt\n+Hi\n*** End Patch\n"
    call = json.dumps({"name": "apply_patch", "arguments": {"input": patch}})

    def answer(messages: Messages) -> str:
        done = any(role == "tool" for role, _ in messages)
        return "Done." if done else f"<tool_call>{call}</tool_call>"

    agent = replace(CODEX, flags=(*CODEX.flags, "-m", "gpt-5.5"))
    async with (
        serving_agents(talking(answer)) as server,
        started(agent, server, tmp_path, "Write it.") as process,
    ):
        assert "Done." in await output(process)
    assert (tmp_path / "work" / "new.txt").read_text() == "Hi\n"


@each_agent
async def test_an_interrupted_agent(agent: Agent, tmp_path: Path) -> None:
    async with serving_agents(talking(lambda _: ENDLESS * 10_000)) as server:
        async with started(agent, server, tmp_path, "Tell me all.") as process:
            await until(lambda: server.engine.engine.stats.generated_tokens > 20)
            process.send_signal(signal.SIGINT)
            await process.wait()
        await server.idle()
        assert not server.model.live_states
        assert ended(await server.metrics(), agent)["client_gone"] >= 1
