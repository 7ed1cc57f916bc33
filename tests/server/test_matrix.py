"""However a client leaves, in every protocol, mode and phase: its work ends, and nobody notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dialects import Dialect, every_dialect, whole_or_stream
from matrix import CHUNK, PHASES, WAYS, Cell, Way, meaningless, request_lines
from serving import serving

if TYPE_CHECKING:
    from trio.testing import MockClock


@every_dialect
@whole_or_stream
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_leaving(mock_clock: MockClock, dialect: Dialect, stream: bool, way: Way) -> None:
    """One server for all phases, so that each finds it as the one before has left it."""
    with request_lines() as lines:
        async with serving(max_running=2, prefill_chunk_tokens=CHUNK, **way.settings) as server:
            for phase in PHASES:
                if meaningless(way, phase) is None:
                    try:
                        await Cell(server, mock_clock, dialect, way, phase, stream=stream).run(
                            lines
                        )
                    except BaseException as error:
                        error.add_note(f"in the phase: {phase.name}")
                        raise
