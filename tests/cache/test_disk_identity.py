"""A model is told from every other one that could leave other keys and values behind."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tiny_llama import write_tiny_llama

from ds4trio.cache import disk_identity
from ds4trio.cache.disk_identity import identify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))


def test_a_copy_is_the_same_model(tmp_path: Path, model: Path) -> None:
    copy = write_tiny_llama(tmp_path / "copy")
    assert identify(copy, "fp32") == identify(model, "fp32")
    assert identify(copy, "fp32").digest != identify(model, "bf16").digest


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9999])
def test_any_byte_of_the_weights_counts(model: Path, share: float) -> None:
    weights = model / "model.safetensors"
    before = identify(model, "")
    flip(weights, int(share * weights.stat().st_size))
    assert identify(model, "").model != before.model
    assert identify(model, "").tokenizer == before.tokenizer


def test_settings_and_tokenizer_count(model: Path) -> None:
    before = identify(model, "")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 5000}))
    changed = identify(model, "")
    assert changed.model != before.model
    (model / "tokenizer.json").write_text("{}")
    assert identify(model, "").tokenizer != before.tokenizer
    assert identify(model, "").model == changed.model


def test_samples_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its beginning all, of the rest a part of each stretch; and when it was changed."""
    monkeypatch.setattr(disk_identity, "WHOLE_BYTES", 100)
    monkeypatch.setattr(disk_identity, "HEAD_BYTES", 40)
    monkeypatch.setattr(disk_identity, "STRETCH_BYTES", 20)
    monkeypatch.setattr(disk_identity, "SAMPLE_BYTES", 5)
    file = tmp_path / "large.gguf"
    file.write_bytes(bytes(101))
    before = identify(file, "")
    changed_ns = file.stat().st_mtime_ns
    noticed = []
    for place in range(101):
        file.write_bytes(bytes(101))
        flip(file, place)
        os.utime(file, ns=(0, changed_ns))
        noticed.append(identify(file, "") != before)
    assert noticed == [p < 40 or p % 20 < 5 for p in range(101)]
    file.write_bytes(bytes(101))
    os.utime(file, ns=(0, changed_ns + 1))
    assert identify(file, "") != before
