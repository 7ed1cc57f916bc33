"""Coding agents with the settings that README.md gives, and nothing that calls home."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

README = Path(__file__).parents[2] / "README.md"
#: A folder to look for agents in before those of PATH.
AGENTS_VARIABLE = "DS4TRIO_TEST_AGENTS"


@dataclass(frozen=True, slots=True)
class Agent:
    """``prepare`` writes settings for a server into an empty home, and gives the environment.

    ``shell`` is the tool that runs commands, and its argument.
    """

    name: str
    program: str
    protocol: str
    shell: tuple[str, str]
    flags: Sequence[str]
    prepare: Callable[[Path, str], dict[str, str]]

    def found(self) -> str | None:
        return shutil.which(self.program, path=search_path())


def search_path() -> str:
    folders = os.environ.get(AGENTS_VARIABLE), os.environ.get("PATH", os.defpath)
    return os.pathsep.join(filter(None, folders))


def settings(agent: str, language: str, url: str) -> str:
    """README.md's settings for an agent, with another server's address."""
    pattern = rf"^\*\*{agent}\*\*.*?^```{language}\n(.*?)^```"
    found = re.search(pattern, README.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].replace("http://127.0.0.1:8000", url)


def claude_code(home: Path, url: str) -> dict[str, str]:
    """Its variables."""
    words = shlex.split(settings("Claude Code", "sh", url))
    return dict(word.split("=", 1) for word in words if "=" in word)


def codex(home: Path, url: str) -> dict[str, str]:
    (home / "config.toml").write_text(settings("Codex", "toml", url))
    return {"CODEX_HOME": str(home)}


def pi(api: str, root: str) -> Callable[[Path, str], dict[str, str]]:
    """Over another protocol, whose base URL ends with ``root``."""

    def prepare(home: Path, url: str) -> dict[str, str]:
        chosen = json.loads(settings("pi", "json", url))
        chosen["providers"]["ds4trio"] |= {"api": api, "baseUrl": url + root}
        (home / "models.json").write_text(json.dumps(chosen))
        silent = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
        return {"PI_CODING_AGENT_DIR": str(home), **silent}

    return prepare


# No one is there to allow what a tool does.
CLAUDE_FLAGS = ("-p", "--model", "NAME", "--allowedTools=Bash")
CODEX_FLAGS = (
    *("exec", "--skip-git-repo-check"),
    *("-c", "approval_policy=never", "-c", "sandbox_mode=danger-full-access"),
)
PI_FLAGS = ("--provider", "ds4trio", "--model", "NAME", "--no-session", "-p")

CODEX = Agent("codex", "codex", "responses", ("exec_command", "cmd"), CODEX_FLAGS, codex)
AGENTS = [
    Agent("claude-code", "claude", "messages", ("Bash", "command"), CLAUDE_FLAGS, claude_code),
    CODEX,
    *[
        Agent(f"pi-{protocol}", "pi", protocol, ("bash", "command"), PI_FLAGS, pi(api, root))
        for protocol, api, root in (
            ("chat", "openai-completions", "/v1"),
            ("messages", "anthropic-messages", ""),
            ("responses", "openai-responses", "/v1"),
        )
    ],
]
