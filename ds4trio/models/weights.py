"""Weights by name, from safetensors or a GGUF file, each asked for once and none left over.

Knows nothing of any model family. Runs on: worker. Never unpickles anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError, safe_open

from ds4trio.errors import LoadError
from ds4trio.models.config_fields import read_json_object

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ds4trio.models.gguf import GgufFile

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

#: Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
#: safetensors' names of the types that are weights as they stand.
_FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})


class TensorSource(Protocol):
    """Where tensors are read from. Raises: LoadError naming file and tensor."""

    @property
    def path(self) -> Path:
        """The file, or the folder of the files."""
        ...

    @property
    def names(self) -> Collection[str]: ...

    def where(self, name: str) -> str:
        """File and tensor in words, to begin an error message with."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the tensor."""
        ...

    def kind(self, name: str) -> str:
        """How it is stored, in safetensors' names of types."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """A floating point tensor on the CPU, perhaps memory-mapped: not to be written to."""
        ...

    def stored(self, name: str) -> torch.Tensor:
        """As ``read``, of any type."""
        ...


class Weights:
    """A source's tensors as a model takes them: checked, converted and accounted for."""

    def __init__(self, source: TensorSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._unused = {name for name in source.names if not _DERIVED.fullmatch(name)}
        self.dtype = dtype
        self.device = device

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor of one's own in this model's dtype, on its device.

        Raises: LoadError if it is missing or has another shape.
        """
        return self._read(name, shape).to(self.device, self.dtype, copy=True)

    def take_joined(
        self, names: Collection[str], rows: Collection[int], *rest: int
    ) -> torch.Tensor:
        """Several tensors as one, row below row; ``rows`` says how many each has.

        Shapes: returns (sum of rows, *rest).
        """
        parts = [
            self._read(name, (count, *rest)).to(self.device, self.dtype)
            for name, count in zip(names, rows, strict=True)
        ]
        return torch.cat(parts)

    @property
    def names(self) -> Collection[str]:
        return self._source.names

    def kind(self, name: str) -> str:
        """How a tensor that is there is stored, in safetensors' names of types."""
        return self._source.kind(name)

    def where(self, name: str) -> str:
        """File and tensor in words, to begin an error message with."""
        return self._source.where(name)

    def take_stored(self, name: str, kinds: Collection[str], *shape: int) -> torch.Tensor:
        """A tensor as it is stored, on the CPU and perhaps memory-mapped: not to be written to.

        Raises: LoadError if it is missing or has another shape or none of these types.
        """
        self._check(name, shape)
        if (kind := self._source.kind(name)) not in kinds:
            wanted = " or ".join(sorted(kinds))
            raise LoadError(f"{self._source.where(name)}: has type {kind}, expected {wanted}")
        return self._source.stored(name)

    def set_aside(self, names: Collection[str]) -> None:
        """Tensors that are there and not needed."""
        self._unused.difference_update(names)

    def take_copy_of(self, name: str, original: torch.Tensor) -> None:
        """A tensor that may be there, but then must say the same as ``original``."""
        if name not in self._source.names:
            return
        if not torch.equal(self.take(name, *original.shape), original):
            where = self._source.where(name)
            raise LoadError(f"{where}: differs from what tie_word_embeddings ties it to")

    def finish(self) -> None:
        """All is taken. Raises: LoadError naming a tensor that nothing asked for."""
        if self._unused:
            name = min(self._unused)
            others = f" (and {len(self._unused) - 1} more)" if len(self._unused) > 1 else ""
            raise LoadError(f"{self._source.where(name)}: the model has no such tensor{others}")

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self._check(name, shape)
        return self._source.read(name)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._source.names:
            raise LoadError(f"{self._source.path}: {name}: missing")
        found = self._source.shape(name)
        if found != shape:
            raise LoadError(
                f"{self._source.where(name)}: has shape {list(found)}, expected {list(shape)}"
            )
        self._unused.discard(name)


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _SafetensorsReader(Protocol):
    """What is used of ``safetensors.safe_open``, which has no types."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


class SafetensorsFolder:
    """The safetensors of a model folder: one file, or several with an index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        single = (path / SINGLE_FILE).exists()
        index = {} if single else _weight_map(path)
        self._files: dict[str, Path] = {}
        self._readers: dict[Path, _SafetensorsReader] = {}
        for file in [path / SINGLE_FILE] if single else sorted({path / f for f in index.values()}):
            reader = self._readers[file] = _open(file)
            for name in reader.keys():  # noqa: SIM118  # a method of safetensors, not a dict
                if name in self._files:
                    raise LoadError(f"{file}: {name}: is also in {self._files[name].name}")
                self._files[name] = file
        for name, file_name in index.items():
            if self._files.get(name) != path / file_name:
                raise LoadError(f"{path / INDEX_FILE}: weight_map: {name}: is not in {file_name}")

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def where(self, name: str) -> str:
        return f"{self._files[name]}: {name}"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._readers[self._files[name]].get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        return self._readers[self._files[name]].get_slice(name).get_dtype()

    def read(self, name: str) -> torch.Tensor:
        if (kind := self.kind(name)) not in _FLOAT_TYPES:
            raise LoadError(f"{self.where(name)}: has type {kind}, which is not supported")
        return self.stored(name)

    def stored(self, name: str) -> torch.Tensor:
        return self._readers[self._files[name]].get_tensor(name)


class GgufTensors:
    """The tensors of a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._file = file

    @property
    def names(self) -> Collection[str]:
        return self._file.names

    def where(self, name: str) -> str:
        return f"{self._file.path}: {self._file.gguf_name(name)}"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(name)

    def kind(self, name: str) -> str:
        return "F32"  # whatever it was in the file: it is expanded as it is read

    def read(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._file.tensor(name))

    def stored(self, name: str) -> torch.Tensor:
        return self.read(name)


def _open(file: Path) -> _SafetensorsReader:
    try:
        return safe_open(file, framework="pt")
    except OSError as error:
        raise LoadError(f"{file}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise LoadError(f"{file}: truncated or damaged safetensors file: {error}") from None


def _weight_map(folder: Path) -> dict[str, str]:
    """File name of each tensor."""
    index = folder / INDEX_FILE
    if not index.exists():
        raise LoadError(f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{index}: weight_map: missing, or not an object with tensors")
    for name, file in weight_map.items():
        # A name with a folder in it could lead out of the model's own folder.
        if not isinstance(file, str) or "/" in file or "\\" in file:
            raise LoadError(f"{index}: weight_map: {name}: {file!r} is not a file name")
    return weight_map
