"""A GGUF file to a folder in Hugging Face form, once, so that no later start converts anything."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ds4trio.errors import LoadError
from ds4trio.models.gguf import GgufFile
from ds4trio.text.from_gguf import hf_tokenizer_from_gguf, tokenizer_config_from_gguf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ds4trio.store.progress import Progress

#: Hugging Face's name of each token that ends or starts an answer, and the GGUF key it is under.
_GENERATION_TOKENS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}


def convert_gguf(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write weights, configuration and tokenizer of a GGUF into an empty folder.

    Weights become float32, in which GGUF's blocks are defined. Memory: one float32 copy of the
    model, while it runs.

    Raises: LoadError for what is wrong with the file, OSError.
    """
    source = GgufFile(gguf)
    _write_json(folder / "config.json", source.config)
    _write_json(folder / "generation_config.json", _generation_config(source.metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config_from_gguf(source.metadata))
    tokenizer = hf_tokenizer_from_gguf(source.metadata)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    _write_weights(source, folder / "model.safetensors", progress)


def _write_weights(source: GgufFile, path: Path, progress: Progress) -> None:
    names = list(source.names)
    tensors: dict[str, np.ndarray] = {}
    with progress.stage("preparing", len(names), "tensor") as advance:
        for name in names:
            # The writer takes the memory as it lies.
            tensors[name] = np.ascontiguousarray(source.tensor(name), dtype=np.float32)
            advance(1)
        try:
            save_file(tensors, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise LoadError(f"cannot write {path}: {error}; is there enough free space?") from error
    # safetensors makes the file readable for its owner alone, whatever the umask says.
    shutil.copymode(path.with_name("config.json"), path)


def _generation_config(metadata: Mapping[str, object]) -> dict[str, object]:
    return {name: metadata[key] for name, key in _GENERATION_TOKENS.items() if key in metadata}


def _write_json(path: Path, document: object) -> None:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
