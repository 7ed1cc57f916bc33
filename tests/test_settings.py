"""Settings: where they come from, who wins, and what is said of a wrong one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ds4trio import config
from ds4trio.config import ENV_PREFIX, Settings, as_environ, convert, describe, load_settings
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = [spec.name for spec in fields(Settings)]


def values(name: str) -> list[tuple[str, object]]:
    """Three values of a setting, as text and as what the text means, by its annotation's words."""
    words = Settings.__annotations__[name]
    if name == "heartbeat_s":
        return [("0.01", 0.01), ("1.5", 1.5), ("1e3", 1000.0)]
    if "None" in words:
        return [*some_values(words)[:2], ("", None)]
    return some_values(words)


def some_values(words: str) -> list[tuple[str, object]]:
    if choices := get_args(eval(words, vars(config))):
        names = [choice for choice in choices if isinstance(choice, str)]
        if names:
            return [(name, name) for name in (names * 3)[1:4]]
    match words.removesuffix(" | None"):
        case "bool":
            return [("true", True), ("ON", True), ("1", True)]
        case "int":
            return [("1", 1), ("1_000", 1000), ("64", 64)]
        case "float":
            return [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0)]
        case "Path":
            return [("keys", Path("keys")), ("/keys", Path("/keys")), ("./a", Path("a"))]
        case "tuple[str, ...]":
            return [("a", ("a",)), ("b, c", ("b", "c")), ("d,e,", ("d", "e"))]
        case "str":
            return [("a", "a"), ("./b", "./b"), ("org/c", "org/c")]
    raise AssertionError(words)


WRONG = {
    "strict_model_name": ["maybe", "2", "tru"],
    "port": ["-1", "65536", "eighty", "80.0", ""],
    "context_tokens": ["0", "-1", "many"],
    "max_running": ["0", "", "1.5"],
    "max_waiting": ["-1", "x"],
    "prefill_chunk_tokens": ["0", "x"],
    "request_timeout_s": ["-0.1", "nan", "inf", "soon"],
    "body_timeout_s": ["-1", "nan", "inf", ""],
    "client_stall_timeout_s": ["-1", "nan", "inf", "86401"],
    "half_close": ["", "both"],
    "max_connections": ["0", "x"],
    "drain_timeout_s": ["-1", "nan", "-inf"],
    "heartbeat_s": ["0", "nan", "inf", "-1"],
    "max_body_bytes": ["0", "1e3"],
    "threads": ["0", "-2", "100000"],
    "dtype": ["", "float32", "FP32"],
    "prompt_contract": ["", "731", "PREVIEW"],
    "experts": ["", "disk", "cpu"],
    "experts_hot_bytes": ["-1", "1e9", "all"],
    "simulate_release_numerics": ["maybe"],
    "log_format": ["", "xml", "JSON"],
    "host": ["a\0b"],
    "model": ["a\0b"],
    "api_keys_file": ["a\0b"],
    "allowed_hosts": ["a,b\0c"],
    "page": ["maybe"],
}


def test_each_setting_is_described() -> None:
    assert [name for name, *_ in describe()] == NAMES
    assert all(help_ for *_, help_ in describe())


def error_of(**sources: Any) -> str | None:
    """What is wrong, if anything is. Anything but a ConfigError is a bug."""
    try:
        load_settings(**sources)
    except ConfigError as error:
        return error.message
    return None


def toml(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}\n"
    if isinstance(value, tuple):
        value = list(value)
    written = value if isinstance(value, int | float | list) else f"'{value}'"
    return f"{name} = {written}\n"


@pytest.mark.parametrize("name", NAMES)
def test_flag_over_environment_over_file_over_default(name: str, tmp_path: Path) -> None:
    (_, in_file), (env_text, in_env), (flag_text, in_flag) = values(name)
    assert in_file is not None
    file = tmp_path / "ds4trio.toml"
    file.write_text(toml(name, in_file))
    if isinstance(in_file, Path):
        in_file = tmp_path / in_file  # a file's paths are its neighbours
    environ = {ENV_PREFIX + name.upper(): env_text, "HOME": "/root"}
    flags = {name: convert(name, flag_text, "flag")}

    def told(**sources: Any) -> object:
        return getattr(load_settings(**{"environ": {}, **sources}), name)

    assert told() == getattr(Settings(), name)
    assert told(file=file) == in_file
    assert told(environ={"DS4TRIO_CONFIG": str(file)}) == in_file
    assert told(file=file, environ=environ) == in_env
    assert told(file=file, environ=environ, flags=flags) == in_flag
    assert told(environ=environ, flags=flags) == in_flag


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in WRONG.items() for t in texts])
def test_what_is_wrong_is_named(name: str, text: str) -> None:
    variable = ENV_PREFIX + name.upper()
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={variable: text})
    assert name in caught.value.message.lower()
    assert "\n" not in caught.value.message
    with pytest.raises(ConfigError) as caught:
        load_settings({name: convert(name, text, "--" + name)}, environ={})
    assert name in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        "port = '80'",
        "port = true",
        "port = 80.5",
        "strict_model_name = 1",
        "strict_model_name = 'true'",
        "heartbeat_s = '1'",
        "heartbeat_s = nan",
        "drain_timeout_s = 1" + "0" * 400,
        "model = 1",
        "api_keys_file = 1",
        "api_keys_file = 'a\\u0000b'".replace("'", '"'),
        "dtype = 'float32'",
        "log_format = ['json']",
        "cors_origins = 'https://a'",
        "cors_origins = [1]",
        "host = {}",
        "max_running = 2020-01-01",
    ],
)
def test_what_is_wrong_in_a_file_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "ds4trio.toml"
    file.write_text(line)
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, file=file)
    assert line.split(" ")[0] in caught.value.message


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DS4TRIO_PROT: there is no such setting"):
        load_settings(environ={"DS4TRIO_PROT": "80"})
    file = tmp_path / "ds4trio.toml"
    file.write_text("prot = 80")
    with pytest.raises(ConfigError, match="prot: there is no such setting"):
        load_settings(environ={}, file=file)


@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "broken"])
def test_a_file_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "ds4trio.toml"
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe")
    elif kind == "broken":
        file.write_text("port = \nhost")
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, file=file)
    assert caught.value.message.startswith(str(file))


def test_other_peoples_variables_are_left_alone() -> None:
    environ = {"DS4TRIO_HOME": "/nowhere", "DS4TRIO": "x", "PORT": "x", "ds4trio_port": "x"}
    assert load_settings(environ=environ) == Settings()


@given(name=st.sampled_from(NAMES), text=st.text())
@example(name="port", text="9" * 5000)
@example(name="max_waiting", text="9" * 4000)
@example(name="request_timeout_s", text="1e999")
@example(name="max_running", text="٣")
def test_any_text_is_a_value_or_an_error(name: str, text: str) -> None:
    environ = {ENV_PREFIX + name.upper(): text}
    if message := error_of(environ=environ):
        assert name in message.lower()
        assert message.isprintable()
    else:
        flags = {name: convert(name, text, "flag")}
        assert load_settings(environ=environ) == load_settings(flags, environ={})


TOML_VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="'")),
)


@given(document=st.dictionaries(st.sampled_from([*NAMES, "other"]), TOML_VALUES, max_size=3))
def test_any_values_in_a_file_are_settings_or_an_error(
    document: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("toml") / "ds4trio.toml"
    file.write_text("".join(toml(name, value) for name, value in document.items()), "utf-8")
    if message := error_of(environ={}, file=file):
        assert any(name in message for name in document)


@given(text=st.binary() | st.text("[]='\"{}.ab1\n").map(str.encode))
@example(text=b"port = " + b"9" * 5000)
@example(text=b"a = " + b"[" * 5000)
def test_any_file_is_settings_or_an_error(
    text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("toml") / "ds4trio.toml"
    file.write_bytes(text)
    if message := error_of(environ={}, file=file):
        assert message.startswith(str(file))


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(),
        Settings(port=0, threads=1, strict_model_name=True, api_keys_file=Path("/a b/keys")),
        Settings(cors_origins=("https://a", "https://b"), page=False),
        Settings(model="./m", request_timeout_s=0.5, half_close="respond", log_format="json"),
    ],
)
def test_settings_pass_to_another_process(chosen: Settings) -> None:
    assert load_settings(environ=as_environ(chosen)) == chosen
