"""Checkpoints that several modules read, made once a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import make_checkpoint, variants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices this small are only slowed by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a variant, made when first asked for. Not to be written to."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp(variant)
            make_checkpoint(variants()[variant], made[variant])
        return made[variant]

    return get
