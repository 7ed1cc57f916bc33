"""A checkpoint that is not exactly the model's is refused in one line."""

from __future__ import annotations

import json
import pickle
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import checkpoint, make_checkpoint, prompt, rewrite_config, variants
from safetensors.torch import load_file, save_file

from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
PROMPT = prompt(9)


def logits(source: Path) -> torch.Tensor:
    model = load_model(source, device="cpu")
    return model.forward([Chunk(model.new_state(), PROMPT, len(PROMPT))])


def refusal(source: Path) -> str:
    with pytest.raises(LoadError) as caught:
        load_model(source, device="cpu")
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a tied checkpoint, free to be spoilt."""
    return shutil.copytree(checkpoint(tmp_path_factory, "smollm2"), tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_checkpoint(variants()["smollm2"], tmp_path, shard="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def change(folder: Path, **changes: torch.Tensor | None) -> Path:
    """Rewrite tensors of a checkpoint; None removes one. Returns the file."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: t for name, t in tensors.items() if t is not None}, file)
    return file


def test_missing(folder: Path) -> None:
    change(folder, **{Q_PROJ: None})
    assert refusal(folder) == f"{folder}: {Q_PROJ}: missing"


def test_extra(folder: Path) -> None:
    file = change(folder, **{"model.layers.3.mlp.up_proj.weight": torch.ones(2)})
    expected = f"{file}: model.layers.3.mlp.up_proj.weight: the model has no such tensor"
    assert refusal(folder) == expected


def test_misshapen(folder: Path) -> None:
    file = change(folder, **{Q_PROJ: torch.ones(48, 47)})
    assert refusal(folder) == f"{file}: {Q_PROJ}: has shape [48, 47], expected [48, 48]"


def test_wrongly_typed(folder: Path) -> None:
    file = change(folder, **{Q_PROJ: torch.ones(48, 48, dtype=torch.int8)})
    assert refusal(folder) == f"{file}: {Q_PROJ}: has type I8, which is not supported"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types(folder: Path, dtype: torch.dtype) -> None:
    weight = load_file(folder / "model.safetensors")[Q_PROJ].to(torch.bfloat16)
    change(folder, **{Q_PROJ: weight.to(torch.float32)})
    expected = logits(folder)
    change(folder, **{Q_PROJ: weight.to(dtype)})
    torch.testing.assert_close(logits(folder), expected, atol=1e-4, rtol=0)


def test_derived_buffers_are_tolerated(folder: Path) -> None:
    change(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    logits(folder)


def test_a_tied_head_may_be_stored_if_it_says_the_same(folder: Path) -> None:
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change(folder, **{"lm_head.weight": embedding.clone()})
    logits(folder)
    file = change(folder, **{"lm_head.weight": embedding + 1})
    expected = f"{file}: lm_head.weight: differs from what tie_word_embeddings ties it to"
    assert refusal(folder) == expected


def test_an_untied_head_is_needed(folder: Path) -> None:
    rewrite_config(folder, tie_word_embeddings=False)
    assert refusal(folder) == f"{folder}: lm_head.weight: missing"


def test_truncated_anywhere(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for size in [*range(24), *range(24, len(content), len(content) // 60), len(content) - 1]:
        file.write_bytes(content[:size])
        assert refusal(folder).startswith(f"{file}: truncated or damaged safetensors file: ")


def test_shards(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.testing.assert_close(
        logits(sharded), logits(checkpoint(tmp_path_factory, "smollm2")), atol=0, rtol=0
    )


def spoil_index(folder: Path, edit: Callable[[dict[str, object]], object]) -> Path:
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    edit(document["weight_map"])
    index.write_text(json.dumps(document))
    return index


def test_index_names_a_file_that_is_not_there(sharded: Path) -> None:
    spoil_index(sharded, lambda weight_map: weight_map.update({Q_PROJ: "other.safetensors"}))
    assert refusal(sharded).startswith(f"{sharded / 'other.safetensors'}: No such file")


def test_index_names_the_wrong_file(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    wrong = next(f for f in files if Q_PROJ not in load_file(sharded / f))
    spoil_index(sharded, lambda weight_map: weight_map.update({Q_PROJ: wrong}))
    assert refusal(sharded) == f"{index}: weight_map: {Q_PROJ}: is not in {wrong}"


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors", 3])
def test_index_leads_out_of_the_folder(sharded: Path, name: object) -> None:
    index = spoil_index(sharded, lambda weight_map: weight_map.update({Q_PROJ: name}))
    assert refusal(sharded) == f"{index}: weight_map: {Q_PROJ}: {name!r} is not a file name"


def test_index_without_a_map(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text("{}")
    assert refusal(sharded) == f"{index}: weight_map: missing, or not an object with tensors"


def test_a_tensor_in_two_files(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    repeated = next(iter(load_file(first)))
    save_file(load_file(second) | {repeated: torch.ones(1)}, second)
    assert refusal(sharded) == f"{second}: {repeated}: is also in {first.name}"


def test_pickles_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    expected = f"{folder}: has neither model.safetensors nor model.safetensors.index.json"
    assert refusal(folder) == expected
