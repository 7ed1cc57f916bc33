from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import errors
from tiny import RecordedProgress

from ds4trio.errors import LoadError
from ds4trio.store.resolve import ModelStore

if TYPE_CHECKING:
    from pathlib import Path

REPO_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "chat_template.jinja",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "encoding/encoding_dsv4.py",
    "consolidated.safetensors",
    "pytorch_model.bin",
    "training_args.bin",
    "README.md",
    "modeling_custom.py",
    "original/params.json",
    "original/consolidated.00.pth",
    "onnx/model.safetensors",
    "encoding/README.md",
    "encoding/test_encoding_dsv4.py",
    "encoding/tests/test_input_1.json",
    "inference/model.py",
    "inference/config.json",
    "some/encoding/encoding_dsv4.py",
]


@dataclass
class LocalHub:
    """In place of ``snapshot_download``: one repository, filtered with the hub's own rule.

    ``fault`` is raised instead of answering.
    """

    folder: Path
    files: list[str]
    fault: Exception | None = None
    forced: list[bool] = field(default_factory=list)

    def __call__(
        self,
        repo_id: str,
        *,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        force_download: bool,
    ) -> str:
        self.forced.append(force_download)
        if self.fault is not None:
            raise self.fault
        for name in self.files:
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in ignore_patterns):
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        return str(self.folder)


def hub_store(tmp_path: Path, hub: LocalHub) -> ModelStore:
    return ModelStore(home=tmp_path / "home", progress=RecordedProgress(), download_snapshot=hub)


def test_only_weights_settings_and_tokenizer_are_fetched(tmp_path: Path) -> None:
    hub = LocalHub(tmp_path / "snapshot", REPO_FILES)
    resolved = hub_store(tmp_path, hub).resolve("org/Model-1.5B")
    assert (resolved.path, resolved.name) == (hub.folder, "org/Model-1.5B")
    fetched = {str(p.relative_to(hub.folder)) for p in hub.folder.rglob("*") if p.is_file()}
    assert fetched == set(REPO_FILES[:9])


def test_the_default_models_hub_name_is_fetched_from_the_hub(tmp_path: Path) -> None:
    hub = LocalHub(tmp_path / "snapshot", REPO_FILES)
    resolved = hub_store(tmp_path, hub).resolve("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert resolved.path == hub.folder


def test_force_reaches_the_hub(tmp_path: Path) -> None:
    hub = LocalHub(tmp_path / "snapshot", REPO_FILES)
    store = hub_store(tmp_path, hub)
    store.resolve("org/name")
    store.resolve("org/name", force=True)
    assert hub.forced == [False, True]


def test_a_folder_of_that_name_comes_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = LocalHub(tmp_path / "org" / "name", REPO_FILES)
    store = hub_store(tmp_path, hub)
    store.resolve("org/name")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("org/name").name == "name"
    assert len(hub.forced) == 1


def test_a_repository_without_safetensors(tmp_path: Path) -> None:
    files = [name for name in REPO_FILES if not name.endswith(".safetensors")]
    hub = LocalHub(tmp_path / "snapshot", files)
    with pytest.raises(LoadError, match=r"no \.safetensors file"):
        hub_store(tmp_path, hub).resolve("org/name")


def without_response(kind: type[errors.HfHubHTTPError], text: str) -> errors.HfHubHTTPError:
    """One of the hub's errors, whose constructors all want an HTTP response that is not used."""
    error = kind.__new__(kind)
    error.args = (text,)
    return error


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (without_response(errors.RepositoryNotFoundError, "404"), "no such model on the Hugging"),
        (without_response(errors.GatedRepoError, "403"), "gated: accept its terms.*HF_TOKEN"),
        (without_response(errors.HfHubHTTPError, "500 Server Error"), "failed: 500 Server Error;"),
        (errors.HFValidationError("Repo id must be short"), "not a name.*: Repo id must be short"),
        (
            errors.LocalEntryNotFoundError("Got: ConnectError: no route\nPlease check"),
            "failed: Got: ConnectError: no route; check the network",
        ),
        (OSError(28, "No space left on device"), "No space left on device; .*free space"),
        (TimeoutError(), "failed: TimeoutError; check the network"),
    ],
)
def test_a_failure_is_one_line_that_names_the_model(
    tmp_path: Path, fault: Exception, message: str
) -> None:
    hub = LocalHub(tmp_path / "snapshot", REPO_FILES, fault)
    with pytest.raises(LoadError, match=message) as caught:
        hub_store(tmp_path, hub).resolve("org/name")
    assert str(caught.value).startswith("org/name: ")
    assert "\n" not in str(caught.value)


def test_the_real_client_refuses_a_bad_name_and_an_unreachable_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    store = ModelStore(home=tmp_path / "home", progress=RecordedProgress())
    with pytest.raises(LoadError, match="not a name of the Hugging Face hub"):
        store.resolve("org/na me")
    with pytest.raises(LoadError, match="download from the Hugging Face hub failed"):
        store.resolve("org/name")
