"""The command line: what it takes, and that whatever is wrong is one line and an exit code."""

from __future__ import annotations

import logging
import shutil
import socket
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from tiny_llama import write_tiny_llama

from ds4trio.cli import main
from ds4trio.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No settings of the machine's, no models but ours, and logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("ds4trio")
    before = root.handlers[:], root.level, ours.level
    monkeypatch.setenv("DS4TRIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield
    root.handlers[:], root.level, ours.level = before


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "tiny")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and what was said on stderr (Python prints an exit's text there, with code 1)."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    said = capsys.readouterr().err
    code = caught.value.code
    return (1, said + code + "\n") if isinstance(code, str) else (code, said)


def wrong(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that cannot be done."""
    code, said = run(capsys, *arguments)
    assert code in (1, 2)
    (line,) = [line for line in said.splitlines() if " INFO " not in line]
    assert line.startswith("ds4trio")
    return line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["serve", "--prot", "80"],
        ["serve", "a", "b"],
        ["serve", "--port"],
        ["serve", "--strict-model-name=yes"],
        ["pull", "a", "b"],
        ["pull", "--port", "80"],
    ],
    ids=" ".join,
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "--help" in wrong(capsys, *arguments)
    assert run(capsys, *arguments)[0] == 2


def test_every_setting_is_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    said = "".join(capsys.readouterr().out.split())  # lines are broken anywhere
    for spec in fields(Settings):
        if spec.name != "model":
            assert f"--{spec.name.replace('_', '-')}" in said
            assert "".join(spec.metadata["help"].split()) in said
    assert "--dtypeauto|fp32|bf16|int8|int4" in said


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--port=eighty", "--port: 'eighty' is not a whole number"),
        ("--port=65536", "port: 65536 is more than 65535"),
        ("--max-running=0", "max_running: 0 is less than 1"),
        ("--heartbeat-s=nan", "heartbeat_s: nan is not a finite number"),
        ("--dtype=fp64", "--dtype: 'fp64' is not one of auto, fp32, bf16, int8, int4"),
        ("--config=missing.toml", "missing.toml: No such file or directory"),
        ("--api-keys-file=missing", "api_keys_file: missing: No such file or directory"),
        ("--context-tokens=1000000", "context_tokens 1000000 is more than the model's 100000"),
        ("--device=toaster", "'toaster'"),
        ("--host=nowhere.invalid", "cannot listen on nowhere.invalid port 0"),
        (f"--host={'x' * 64}.invalid", f"cannot listen on {'x' * 64}.invalid port 0"),
    ],
)
def test_a_wrong_flag(
    capsys: pytest.CaptureFixture[str], flag: str, reason: str, tiny: Path
) -> None:
    assert reason in wrong(capsys, "serve", str(tiny), "--port=0", "--threads=1", flag)


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("DS4TRIO_PORT=x", "DS4TRIO_PORT: 'x' is not a whole number"),
        ("DS4TRIO_PROT=1", "DS4TRIO_PROT: there is no such setting"),
        ("DS4TRIO_CONFIG=missing.toml", "missing.toml: No such file or directory"),
    ],
)
def test_a_wrong_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, reason: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert reason in wrong(capsys, "serve")


@pytest.mark.parametrize(
    ("text", "reason"), [("port = 'x'", "port: 'x' is not"), ("port =", "ds4trio.toml: ")]
)
def test_a_wrong_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "ds4trio.toml"
    file.write_text(text)
    assert reason in wrong(capsys, "serve", f"--config={file}")


def test_an_empty_flag_unsets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TRIO_API_KEYS_FILE", "missing")
    line = wrong(capsys, "serve", "nowhere", "--port=0", "--api-keys-file=")
    assert "nowhere" in line
    assert "missing" not in line


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = wrong(capsys, "serve", str(tiny), f"--port={port}")
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in line


@pytest.mark.parametrize("name", ["", "nowhere", "./nowhere", "/no/where", "a/b/c", "x" * 5000])
@pytest.mark.parametrize("command", ["serve", "pull"])
def test_a_model_that_is_not_there(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    flags = ["--port=0"] if command == "serve" else []
    assert name[:20] in wrong(capsys, command, name, *flags)


@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "no weights", "no config", "broken config", "no tokenizer",
               "broken tokenizer", "a tensor less", "not a Llama"],
)  # fmt: skip
def test_a_damaged_model(capsys: pytest.CaptureFixture[str], damage: str, tiny: Path) -> None:
    weights, config, tokenizer = (
        tiny / name for name in ("model.safetensors", "config.json", "tokenizer.json")
    )
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "empty":
            weights.write_bytes(b"")
        case "no weights":
            weights.unlink()
        case "no config":
            config.unlink()
        case "broken config":
            config.write_text("{")
        case "no tokenizer":
            tokenizer.unlink()
        case "broken tokenizer":
            tokenizer.write_text("{}")
        case "a tensor less":
            config.write_text(config.read_text().replace('_layers": 2', '_layers": 3'))
        case _:
            config.write_text(config.read_text().replace('"llama"', '"camel"'))
    assert str(tiny) in wrong(capsys, "serve", str(tiny), "--port=0", "--threads=1")


def test_pull_says_where(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pull", str(tiny)])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"{tiny}\n"
