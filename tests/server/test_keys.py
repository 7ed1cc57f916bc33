from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ds4trio.errors import ConfigError
from ds4trio.server.keys import ApiKeys, KeyRules

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    return ApiKeys.load(written(tmp_path, "# ours\n\nsk-ann\r\n  sk-bob  \n# sk-old\nsk-cat"))


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "keys"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize(("key", "name"), [("ann", "key-1"), ("bob", "key-2"), ("cat", "key-3")])
def test_each_key_is_found_in_either_header(keys: ApiKeys, key: str, name: str) -> None:
    sent = b"sk-" + key.encode()
    assert keys.find({b"authorization": b"Bearer " + sent}) == name
    assert keys.find({b"authorization": b"bearer  " + sent + b" "}) == name
    assert keys.find({b"x-api-key": sent}) == name


def test_one_right_header_is_enough(keys: ApiKeys) -> None:
    """Some clients fill both, one with a placeholder."""
    assert keys.find({b"authorization": b"Bearer none", b"x-api-key": b"sk-bob"}) == "key-2"
    assert keys.find({b"authorization": b"Bearer sk-bob", b"x-api-key": b"none"}) == "key-2"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer "},
        {b"authorization": b"sk-ann"},
        {b"authorization": b"Basic sk-ann"},
        {b"authorization": b"Bearer sk-an"},
        {b"authorization": b"Bearer sk-anna"},
        {b"authorization": b"Bearer SK-ANN"},
        {b"authorization": b"Bearer sk-old"},
        {b"authorization": b"Bearer # ours"},
        {b"authorization": b"Bearer \xff\x00"},
        {b"x-api-key": b""},
        {b"x-api-key": b"Bearer sk-ann"},
        {b"cookie": b"sk-ann"},
    ],
)
def test_anything_else_is_no_key(keys: ApiKeys, headers: dict[bytes, bytes]) -> None:
    assert keys.find(headers) is None


@pytest.mark.parametrize("text", ["", "\n \n", "# only\n# comments\n"])
def test_a_file_without_keys_is_wrong(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"api_keys_file: .*no key"):
        ApiKeys.load(written(tmp_path, text))


@pytest.mark.parametrize("line", ["ann: sk-secret", "sk-secret\x07", "sk-secr\u00e9t"])
def test_a_line_that_is_no_key_is_named_but_not_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="line 2") as caught:
        ApiKeys.load(written(tmp_path, f"sk-ann\n{line}\n"))
    assert "secr" not in str(caught.value)


def test_a_file_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keys: not UTF-8"):
        ApiKeys.load(written(tmp_path, b"sk-\xff"))
    with pytest.raises(ConfigError, match="absent: No such file"):
        ApiKeys.load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="api_keys_file"):
        ApiKeys.load(tmp_path)


def test_keys_are_nowhere_to_be_seen(keys: ApiKeys) -> None:
    assert "sk-" not in repr(keys) + repr(vars(keys))


def test_rules_follow_a_key(tmp_path: Path) -> None:
    text = "sk-ann name=ann priority max_running=2\tmax_waiting=0\nsk-bob tokens_per_minute=1000\n"
    assert ApiKeys.load(written(tmp_path, text)).rules == [
        KeyRules("ann", may_prioritise=True, max_running=2, max_waiting=0),
        KeyRules("key-2", tokens_per_minute=1000),
    ]


@pytest.mark.parametrize(
    "line",
    [
        *("sk-ann bob", "sk-ann name=", "sk-ann name=a/b", "sk-ann max_running", "sk-ann =1"),
        *("sk-ann max_running=-1", "sk-ann max_running=two", "sk-ann tokens_per_minute=1e3"),
        "sk-ann priority=1",
    ],
)
def test_a_wrong_rule_is_one_clear_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="line 1: what follows the key is no rule"):
        ApiKeys.load(written(tmp_path, line))


def test_names_are_each_ones_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: there is a key named ann already"):
        ApiKeys.load(written(tmp_path, "sk-ann name=ann\nsk-bob name=ann"))
