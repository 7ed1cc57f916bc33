"""The compiled step over quantised weights against plain torch, and its matrices against gguf's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from checkpoints import VOCABULARY, make_checkpoint, prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from ds4trio.cache.disk import open_disk_cache
from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.llama.model import LayerWeights, Linear, LlamaModel, ModelWeights
from ds4trio.models.llama.native import NativeLlamaModel, PackedLayer
from ds4trio.models.native.build import CannotBuild, library
from ds4trio.models.native.decoder import Native, Packed
from ds4trio.models.native.pages import LargePages
from ds4trio.models.registry import load_model, model_needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PreTrainedConfig

    from ds4trio.config import Precision

#: Widths that fill blocks of 32; a vocabulary that does not fill eight rows.
_WIDE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "tied": LlamaConfig(**_WIDE, tie_word_embeddings=True),
    "biases": LlamaConfig(**_WIDE, attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "qwen2": Qwen2Config(
        **{**_WIDE, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    ),
    # More query heads to a key head than fit in a tile, and the longest heads.
    "qwen3": Qwen3Config(
        **{**_WIDE, "num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 128}
    ),
}


@pytest.fixture(scope="module")
def native() -> Native:
    try:
        return Native(library())
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices this small are only slowed by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wide")
    for name, config in CONFIGS.items():
        make_checkpoint(config, folder / name)
    return {name: folder / name for name in CONFIGS}


def loaded(folder: Path, dtype: Precision) -> NativeLlamaModel:
    model = load_model(folder, dtype=dtype, device="cpu")
    assert isinstance(model, NativeLlamaModel)
    return model


def rows_of(seed: int, rows: int, cols: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_what_gguf_quantised_comes_out_as_it_was(native: Native, kind: str, bits: int) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    weight = rows_of(7, 97, 160)
    weight[3, 32:64] = 0
    weight[4, :32] = -0.5
    weight = gguf.dequantize(gguf.quantize(weight, quantisation), quantisation)
    packed, error = native.pack(torch.from_numpy(weight), bits)
    torch.testing.assert_close(
        native.expand(packed), torch.from_numpy(weight), rtol=1e-5, atol=1e-6
    )
    assert error < 1e-5


@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 254)])
def test_other_weights_are_off_by_half_a_step_at_most(
    native: Native, bits: int, steps: int
) -> None:
    weight = torch.from_numpy(rows_of(8, 24, 96))
    packed, error = native.pack(weight, bits)
    found = (native.expand(packed) - weight).abs().view(24, -1, 32)
    blocks = weight.view(24, -1, 32)
    assert (found.amax(-1) / blocks.abs().amax(-1)).max() == pytest.approx(error, rel=1e-5)
    span = 2 * blocks.abs().amax(-1) if bits == 8 else blocks.amax(-1) - blocks.amin(-1)
    # The scale, and with 4 bits the offset, are rounded to half precision.
    allowed = (0.51 * span / steps + 2e-3)[..., None]
    assert (found <= allowed).all()


class QuantisingLinear(Linear):
    """Plain torch over what the packed matrix says, its input in 8 bits by blocks of 32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(*x.shape[:-1], -1, 32)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        codes = (blocks / scale.clamp_min(1e-30)).round()
        return super().__call__((codes * scale).flatten(-2))


def plain(model: NativeLlamaModel) -> LlamaModel:
    """The same numbers in the reference implementation."""
    native = model._native

    def linear(packed: Packed) -> Linear:
        return QuantisingLinear(native.expand(packed), packed.bias)

    def layer(packed: PackedLayer) -> LayerWeights:
        return LayerWeights(
            packed.attention_norm,
            linear(packed.qkv),
            packed.qk_norm,
            linear(packed.output),
            packed.mlp_norm,
            linear(packed.gate_up),
            linear(packed.down),
        )

    weights = model._weights
    return LlamaModel(
        model.config,
        ModelWeights(
            native.expand(weights.embedding),
            tuple(layer(one) for one in weights.layers),
            weights.norm,
            linear(weights.head),
        ),
    )


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", ["int4", "int8", "auto"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_those_of_plain_torch(
    folders: dict[str, Path], name: str, dtype: Precision
) -> None:
    model = loaded(folders[name], dtype)
    reference = plain(model)
    state, other = model.new_state(), reference.new_state()
    for token_ids in (prompt(150, seed=3), [5], prompt(7, seed=4)):
        found = model.forward([Chunk(state, token_ids, len(token_ids))])
        expected = reference.forward([Chunk(other, token_ids, len(token_ids))])
        assert found.shape == expected.shape
        # Keys and values are halves here, and a code that falls to the other side is a step more:
        # random weights magnify that.
        assert (found - expected).norm() / expected.norm() < 0.08


@pytest.mark.usefixtures("native")
def test_eight_bits_are_near_the_weights_themselves(folders: dict[str, Path]) -> None:
    ids = prompt(60, seed=5)
    exact = load_model(folders["tied"], dtype="fp32", device="cpu")
    expected = exact.forward([Chunk(exact.new_state(), ids, 60)])
    model = loaded(folders["tied"], "int8")
    found = model.forward([Chunk(model.new_state(), ids, 60)])
    assert (found - expected).norm() / expected.norm() < 0.1
    # Random weights lose in 4 bits: left to itself, it takes 8.
    assert {layer.down.bits for layer in loaded(folders["tied"], "auto")._weights.layers} == {8}


@pytest.fixture(scope="module")
def in_four_bits(native: Native, folders: dict[str, Path]) -> NativeLlamaModel:
    return loaded(folders["tied"], "int4")


@settings(max_examples=15)
@given(data=st.data())
def test_company_changes_no_bit(in_four_bits: NativeLlamaModel, data: st.DataObject) -> None:
    """Alone and whole, or in pieces among others, on any number of threads: the same numbers."""
    model = in_four_bits
    prompts = [prompt(length, seed) for seed, length in enumerate((9, 70, 3, 33))]
    expected = [model.forward([Chunk(model.new_state(), ids, len(ids))]) for ids in prompts]
    states = [model.new_state() for _ in prompts]
    torch.set_num_threads(data.draw(st.integers(1, 2)))
    while True:
        left = [i for i, ids in enumerate(prompts) if states[i].length < len(ids)]
        if not left:
            break
        chosen = data.draw(st.permutations(left))[: data.draw(st.integers(1, len(left)))]
        chunks, wanted = [], []
        for i in chosen:
            start = states[i].length
            size = data.draw(st.integers(1, len(prompts[i]) - start))
            rows = data.draw(st.integers(0, size))
            chunks.append(Chunk(states[i], prompts[i][start : start + size], rows))
            wanted.append(expected[i][start + size - rows : start + size])
        assert torch.equal(model.forward(chunks), torch.cat(wanted))
    torch.set_num_threads(1)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", ["int4", "int8"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_what_it_is_said_to_need_is_what_it_holds(
    folders: dict[str, Path], name: str, dtype: Precision
) -> None:
    needs, _ = model_needs(folders[name], device="cpu", dtype=dtype)
    model = loaded(folders[name], dtype)
    weights = model._weights
    tables = {id(packed): packed for packed in (weights.embedding, weights.head)}
    tensors = [weights.norm, *(packed.blocks for packed in tables.values())]
    for layer in weights.layers:
        packed = (layer.qkv, layer.output, layer.gate_up, layer.down)
        tensors += [layer.attention_norm, layer.mlp_norm, *(one.blocks for one in packed)]
        maybe = (layer.qk_norm, *(one.bias for one in packed))
        tensors += [tensor for tensor in maybe if tensor is not None]
    assert needs.weights_bytes == sum(tensor.nbytes for tensor in tensors)
    state = model.new_state()
    model.forward([Chunk(state, prompt(128), 0)])
    assert needs.state_bytes(128) == state.nbytes


def test_without_a_compiler_weights_stay_in_fp32(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING, "ds4trio.models"):
        model = load_model(folders["tied"], dtype="int8", device="cpu")
    assert isinstance(model, LlamaModel)
    assert caplog.messages == [
        "weights stay in fp32, which is slower: no C++ compiler (no-such-compiler)"
    ]


def test_a_compiler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'decoder.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("DS4TRIO_HOME", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"broken: decoder.cpp:1: error: no such thing"):
        library()
    assert not list((tmp_path / "native").glob("*.so"))


@pytest.mark.usefixtures("native")
def test_each_version_of_a_compiler_builds_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, compiler = tmp_path / "version", tmp_path / "c++"
    built = library()._name
    # Asked for anything but its version, it "builds": what comes after -o.
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec cat {version}\n'
        f'while [ "$1" != -o ]; do shift; done\ncp {built} "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("DS4TRIO_HOME", str(tmp_path))
    paths = []
    for number in ("13.1", "13.1", "14.2"):
        version.write_text(number)
        paths.append(library()._name)
        for lock in (tmp_path / "native").glob("*.lock"):
            lock.unlink()
        library()
        assert not list((tmp_path / "native").glob("*.lock")), "what is built needs no lock"
    assert paths[0] == paths[1] != paths[2]


@pytest.mark.usefixtures("native")
def test_what_is_no_number_does_not_get_lost(folders: dict[str, Path]) -> None:
    """The engine ends a sequence whose logits are not finite, and forgets what they came of."""
    model = loaded(folders["tied"], "auto")
    token_ids = prompt(40)
    for part in range(2):  # a key, a value
        state = model.new_state()
        model.forward([Chunk(state, token_ids[:32])])
        (saved,) = state.save(0).values()
        rows = saved.clone()
        heads = rows.shape[1] // 2
        rows[0, part * heads, 5, 0] = torch.nan
        broken = model.new_state()
        broken.restore([dict.fromkeys(state.save(0), rows)], 32)
        logits = model.forward([Chunk(broken, token_ids[32:])])
        assert not torch.isfinite(logits).all()


@pytest.mark.usefixtures("native")
def test_on_disk_no_model_finds_what_another_way_to_compute_has_left(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders["tied"]
    disk = open_disk_cache(
        tmp_path / "cache", folder, numbers="auto", budget_bytes=1 << 20, keep_token_ids=False
    )
    models = [load_model(folder, device="cpu"), load_model(folder, dtype="bf16", device="cpu")]
    monkeypatch.setenv("CXX", "no-such-compiler")
    models.append(load_model(folder, device="cpu"))
    assert [type(model) for model in models] == [NativeLlamaModel, LlamaModel, LlamaModel]
    # As on three machines: the setting is the same, what came of it is not.
    assert len({disk.store(model)._identity.digest for model in models}) == 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_a_llama_on_a_cpu(tmp_path: Path, device: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v4"}')
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    with pytest.raises(LoadError, match="int8 is for models of the Llama family on a CPU"):
        model_needs(tmp_path, dtype="int8", device=device)


def test_memory_of_weights_is_handed_out_once() -> None:
    pages = LargePages()
    parts = [pages.take(size) for size in (100, 3 << 20, 70 << 20, 64)]
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [len(part) for part in parts] == [100, 3 << 20, 70 << 20, 64]
    assert all((part == number).all() for number, part in enumerate(parts))
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    pages.give_back(parts[3])
    assert pages.take(64).data_ptr() == parts[3].data_ptr()
