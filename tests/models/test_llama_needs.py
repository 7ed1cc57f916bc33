"""What a Llama is said to need is what it then holds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import CONTEXT, checkpoint, oracle, prompt, variants

from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.llama.model import LlamaModel
from ds4trio.models.options import ModelOptions
from ds4trio.models.registry import load_model, model_needs

if TYPE_CHECKING:
    from pathlib import Path


def held(value: object, seen: set[int]) -> int:
    """Bytes of all tensors within, each once."""
    if isinstance(value, torch.Tensor):
        new = value.data_ptr() not in seen
        seen.add(value.data_ptr())
        return value.nbytes if new else 0
    if isinstance(value, tuple):
        return sum(held(part, seen) for part in value)
    if is_dataclass(value):
        return sum(held(getattr(value, spec.name), seen) for spec in fields(value))
    return 0


def loaded(folder: Path) -> LlamaModel:
    model = load_model(folder, dtype="fp32", device="cpu")
    assert isinstance(model, LlamaModel)
    return model


@pytest.mark.parametrize("variant", variants())
def test_weights_and_state(tmp_path_factory: pytest.TempPathFactory, variant: str) -> None:
    folder = checkpoint(tmp_path_factory, variant)
    needs, machine = model_needs(folder, dtype="fp32", device="cpu")
    model = loaded(folder)
    assert held(vars(model)["_weights"], set()) == needs.weights_bytes
    assert machine.device_bytes is None
    assert (needs.layers, needs.vocab_size) == (3, model.vocab_size)
    assert needs.context_tokens == model.context_tokens == CONTEXT
    for tokens in (64, 128, CONTEXT):  # when the room reserved is that which is used
        state = model.new_state()
        model.forward([Chunk(state, prompt(tokens), 0)])
        assert state.nbytes == needs.state_bytes(tokens)
    halved, _ = model_needs(folder, device="cpu", dtype="bf16")
    assert 2 * halved.weights_bytes == needs.weights_bytes
    assert 2 * halved.state_bytes(100) == needs.state_bytes(100)


@pytest.mark.parametrize("variant", variants())
def test_parameters_are_as_many_as_transformers_counts(
    tmp_path_factory: pytest.TempPathFactory, variant: str
) -> None:
    folder = checkpoint(tmp_path_factory, variant)
    needs, _ = model_needs(folder, device="cpu")
    assert needs.parameters == oracle(folder).num_parameters()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("experts", "mapped"),
        ("experts_hot_bytes", 0),
        ("simulate_release_numerics", True),
        ("speculative_tokens", 1),
    ],
)
def test_settings_of_another_family_are_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    options = ModelOptions(**{name: value})  # type: ignore[arg-type]  # one field of several types
    folder = checkpoint(tmp_path_factory, "llama2")
    with pytest.raises(LoadError) as caught:
        load_model(folder, device="cpu", options=options)
    expected = f"the setting {name} is for DeepSeek V4, not for llama"
    assert caught.value.message == f"{folder / 'config.json'}: {expected}"
