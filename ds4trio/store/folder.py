"""What makes a folder a model: config.json, safetensors weights and a tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from pathlib import Path

_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_PICKLED = ("*.bin", "*.pt", "*.pth")


def check_model_folder(folder: Path) -> None:
    """See that nothing is missing; contents are the loader's business.

    Raises: LoadError naming the folder and the file that it lacks.
    """
    if not (folder / "config.json").is_file():
        if ggufs := sorted(folder.glob("*.gguf")):
            raise LoadError(f"{folder}: no config.json; to use a GGUF, name the file: {ggufs[0]}")
        raise LoadError(f"{folder}: not a model folder: no config.json")
    _check_weights(folder)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise LoadError(f"{folder}: no tokenizer: neither {' nor '.join(_TOKENIZERS)}")


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        for name in _shards(index):
            if not (folder / name).is_file():
                raise LoadError(f"{folder}: {name} is missing, though {index.name} lists it")
    elif not any(folder.glob("*.safetensors")):
        if any(file for pattern in _PICKLED for file in folder.glob(pattern)):
            raise LoadError(f"{folder}: only pickled weights; ds4trio reads only safetensors")
        raise LoadError(f"{folder}: no weights: no .safetensors file")


def _shards(index: Path) -> list[str]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
        return sorted({str(name) for name in document["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{index}: not an index of weights: {error!r}") from error
    except OSError as error:
        raise LoadError(f"{index}: {error.strerror}") from error
