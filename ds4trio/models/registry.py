"""A folder or file to a model, its family's code imported on demand."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from ds4trio.errors import LoadError
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.gguf import GgufFile
from ds4trio.models.machine import Machine, this_machine
from ds4trio.models.options import ModelOptions
from ds4trio.models.weights import GgufTensors, SafetensorsFolder, TensorSource, Weights

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.config import Precision
    from ds4trio.models.base import CausalLM
    from ds4trio.models.needs import ModelNeeds
    from ds4trio.models.options import Quantised

#: ``model_type`` of a configuration, and the package that understands it: its module ``load``
#: makes the model, ``needs`` tells beforehand what that takes.
FAMILIES = {
    "deepseek_v4": "ds4trio.models.deepseek_v4",
    "llama": "ds4trio.models.llama",
    "mistral": "ds4trio.models.llama",
    "qwen2": "ds4trio.models.llama",
    "qwen3": "ds4trio.models.llama",
}
#: Those that can compute over quantised weights on a CPU: their ``needs`` has ``quantised_needs``.
QUANTISED_FAMILIES = {"ds4trio.models.llama"}


class _Loads(Protocol):
    def load(
        self,
        config: ConfigFields,
        weights: Weights,
        context_tokens: int | None,
        options: ModelOptions | None,
    ) -> CausalLM: ...


class _Needs(Protocol):
    def needs(
        self,
        config: ConfigFields,
        tensors: TensorSource | None,
        context_tokens: int | None,
        number_bytes: int,
    ) -> ModelNeeds: ...


class _QuantisedNeeds(Protocol):
    def quantised_needs(
        self, config: ConfigFields, context_tokens: int | None, quantised: Quantised
    ) -> ModelNeeds | None: ...


def load_model(
    source: Path,
    *,
    dtype: Precision = "auto",
    device: str = "auto",
    context_tokens: int | None = None,
    options: ModelOptions | None = None,
) -> CausalLM:
    """The model in a folder of safetensors with ``config.json``, or in a ``.gguf`` file.

    ``dtype`` as in `ds4trio.config.Settings`; ``context_tokens`` None is the model's own; a family
    refuses ``options`` that it does not have.
    Runs on: worker, like all that touches torch.
    Raises: LoadError in one line, naming the file and the tensor or setting.
    """
    place = _device(device)
    config, tensors = _open(source)
    package = _package(config)
    family: _Loads = importlib.import_module(f"{package}.load")
    weights = Weights(tensors, dtype=_dtype(dtype, place), device=place)
    quantised = _quantised(dtype, place, package)
    options = replace(options or ModelOptions(), quantised=quantised)
    return family.load(config, weights, context_tokens, options)


def model_needs(
    source: Path,
    *,
    dtype: Precision = "auto",
    device: str = "auto",
    context_tokens: int | None = None,
) -> tuple[ModelNeeds, Machine]:
    """What ``load_model`` would take, and what there is. A folder needs no weights for it.

    Only settings and the headers of files are read. Raises: LoadError.
    """
    place = _device(device)
    number_bytes = _dtype(dtype, place).itemsize
    has_weights = source.is_file() or any(source.glob("*.safetensors"))
    config, tensors = _open(source) if has_weights else (_config(source), None)
    package, machine = _package(config), this_machine(place)
    if quantised := _quantised(dtype, place, package):
        quantising: _QuantisedNeeds = importlib.import_module(f"{package}.needs")
        if needs := quantising.quantised_needs(config, context_tokens, quantised):
            return needs, machine
    family: _Needs = importlib.import_module(f"{package}.needs")
    return family.needs(config, tensors, context_tokens, number_bytes), machine


def _package(config: ConfigFields) -> str:
    model_type = config.text("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise config.error("model_type", f"{model_type!r} is not supported (only {known})")
    return FAMILIES[model_type]


def _config(folder: Path) -> ConfigFields:
    path = folder / "config.json"
    return ConfigFields(path, read_json_object(path))


def _open(source: Path) -> tuple[ConfigFields, TensorSource]:
    if source.is_dir():
        return _config(source), SafetensorsFolder(source)
    if source.suffix == ".gguf":
        file = GgufFile(source)
        return ConfigFields(source, file.config), GgufTensors(file)
    raise LoadError(f"{source}: neither a folder nor a .gguf file")


def _dtype(name: Precision, device: torch.device) -> torch.dtype:
    """Of the weights as they are read."""
    if name == "auto":
        name = "fp32" if device.type == "cpu" else "bf16"
    return torch.bfloat16 if name == "bf16" else torch.float32


def _quantised(name: Precision, device: torch.device, package: str) -> Quantised | None:
    """Raises: LoadError if it is asked for where it cannot be."""
    possible = device.type == "cpu" and package in QUANTISED_FAMILIES
    if name == "auto":
        return "lossless" if possible else None
    if name == "fp32" or name == "bf16":
        return None
    if not possible:
        raise LoadError(f"dtype: {name} is for models of the Llama family on a CPU")
    return name


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
