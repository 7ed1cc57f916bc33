"""A folder or file to a model, its family's code imported on demand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from ds4trio.errors import LoadError
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.gguf import GgufFile
from ds4trio.models.weights import GgufTensors, SafetensorsFolder, TensorSource, Weights

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.models.base import CausalLM

#: ``model_type`` of a configuration, and the module whose ``load`` understands it.
FAMILIES = {
    "deepseek_v4": "ds4trio.models.deepseek_v4.load",
    "llama": "ds4trio.models.llama.load",
    "mistral": "ds4trio.models.llama.load",
    "qwen2": "ds4trio.models.llama.load",
    "qwen3": "ds4trio.models.llama.load",
}


class _Family(Protocol):
    def load(
        self, config: ConfigFields, weights: Weights, context_tokens: int | None
    ) -> CausalLM: ...


def load_model(
    source: Path,
    *,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    device: str = "auto",
    context_tokens: int | None = None,
) -> CausalLM:
    """The model in a folder of safetensors with ``config.json``, or in a ``.gguf`` file.

    ``dtype`` auto is fp32 on a CPU and bf16 on a GPU; ``context_tokens`` None is the model's own.
    Runs on: worker, like all that touches torch.
    Raises: LoadError in one line, naming the file and the tensor or setting.
    """
    place = _device(device)
    precision = _dtype(dtype, place)
    config, tensors = _open(source)
    model_type = config.text("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise config.error("model_type", f"{model_type!r} is not supported (only {known})")
    family: _Family = importlib.import_module(FAMILIES[model_type])
    weights = Weights(tensors, dtype=precision, device=place)
    return family.load(config, weights, context_tokens)


def _open(source: Path) -> tuple[ConfigFields, TensorSource]:
    if source.is_dir():
        path = source / "config.json"
        return ConfigFields(path, read_json_object(path)), SafetensorsFolder(source)
    if source.suffix == ".gguf":
        file = GgufFile(source)
        return ConfigFields(source, file.config), GgufTensors(file)
    raise LoadError(f"{source}: neither a folder nor a .gguf file")


def _dtype(name: Literal["auto", "fp32", "bf16"], device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "fp32" if device.type == "cpu" else "bf16"
    return torch.float32 if name == "fp32" else torch.bfloat16


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if name == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or (index and not index.isdecimal()) or name.endswith(":"):
        raise LoadError(f"device: {name!r} is not cpu, cuda, cuda:N or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise LoadError(f"device: {name!r} is not available (CUDA devices here: {count})")
    return torch.device(name)
