"""What is asked of a model besides its own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import checkpoint, rewrite_config

from ds4trio.errors import LoadError
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from pathlib import Path


def test_context_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = load_model(checkpoint(tmp_path_factory, "llama2"), device="cpu", context_tokens=100)
    assert (model.vocab_size, model.context_tokens) == (97, 100)
    with pytest.raises(LoadError, match=r"config.json.*context_tokens 257 is more than .* 256"):
        load_model(checkpoint(tmp_path_factory, "llama2"), device="cpu", context_tokens=257)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "device: 'tpu' is not cpu, cuda, cuda:N or auto"),
        ("cuda:", "device: 'cuda:' is not cpu"),
        ("cuda:x", "device: 'cuda:x' is not cpu"),
        ("cuda:99", "device: 'cuda:99' is not available"),
    ],
)
def test_device(tmp_path_factory: pytest.TempPathFactory, device: str, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_model(checkpoint(tmp_path_factory, "llama2"), device=device)
    assert message in caught.value.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(LoadError, match=r"device: 'cuda' is not available"):
        load_model(checkpoint(tmp_path_factory, "llama2"), device="cuda")


def test_unknown_family(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for file in checkpoint(tmp_path_factory, "llama2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rewrite_config(tmp_path, model_type="mamba")
    with pytest.raises(LoadError, match=r"config.json: model_type: 'mamba' is not supported"):
        load_model(tmp_path)


def test_neither_folder_nor_gguf(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"absent: neither a folder nor a .gguf file"):
        load_model(tmp_path / "absent")
    with pytest.raises(LoadError, match=r"absent.gguf: No such file"):
        load_model(tmp_path / "absent.gguf")
    with pytest.raises(LoadError, match=r"config.json: No such file"):
        load_model(tmp_path)
