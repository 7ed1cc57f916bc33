"""Models of the Hugging Face hub, through its own client and in its own cache.

Only safetensors weights are fetched: a pickled ``.bin`` is a program, and is never run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ds4trio.errors import LoadError

_MODEL = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
#: DeepSeek V4's own encoder, which is read, never run: its text tells how prompts are worded.
_WANTED = [*_MODEL, "encoding/encoding_dsv4.py"]
#: Sub-folders hold other formats; ``consolidated`` files hold the same weights once more.
_UNWANTED = [*(f"*/{pattern}" for pattern in _MODEL), "consolidated*"]


class DownloadSnapshot(Protocol):
    """The part of ``huggingface_hub.snapshot_download`` that is used."""

    def __call__(
        self,
        repo_id: str,
        *,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        force_download: bool,
    ) -> str: ...


def hub_snapshot(
    repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str], force_download: bool
) -> str:
    """``huggingface_hub.snapshot_download``, imported only when it is needed (it is slow to)."""
    from huggingface_hub import snapshot_download

    return snapshot_download(
        repo_id,
        allow_patterns=allow_patterns,
        ignore_patterns=ignore_patterns,
        force_download=force_download,
    )


def download_from_hub(repo_id: str, download: DownloadSnapshot, *, force: bool) -> Path:
    """A model's folder in the hub's cache, fetched if it is not there. Raises: LoadError."""
    from huggingface_hub import errors

    try:
        folder = download(
            repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, force_download=force
        )
    except errors.HFValidationError as error:
        raise LoadError(f"{repo_id}: not a name of the Hugging Face hub: {_line(error)}") from error
    except errors.GatedRepoError as error:
        raise LoadError(
            f"{repo_id}: this model is gated: accept its terms on its Hugging Face page, then log "
            "in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise LoadError(
            f"{repo_id}: no such folder here, and no such model on the Hugging Face hub "
            "(if it is private, log in with `hf auth login` or set HF_TOKEN)"
        ) from error
    except Exception as error:  # the client lets through what its HTTP library raises
        raise LoadError(
            f"{repo_id}: no such folder here, and the download from the Hugging Face hub failed: "
            f"{_line(error)}; check the network and the free space, or name a local model folder"
        ) from error
    return Path(folder)


def _line(error: Exception) -> str:
    """The hub's messages run over many lines; the first says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
