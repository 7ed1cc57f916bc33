"""Where a sequence is greedy whatever its temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_rig import open_rig, read_all

from ds4trio.engine.job import EngineRequest
from ds4trio.request import SamplingParams
from ds4trio.testing import VOCAB_SIZE, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

BEST = 200


class EveryOther:
    """Greedy at its first token, its third, and so on."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def is_greedy(self) -> bool:
        return self.count % 2 == 0

    def append(self, token_id: int) -> None:
        self.count += 1


def logits(token_ids: Sequence[int]) -> list[float]:
    """Nearly flat: at this temperature the best is no likelier than any other."""
    return [1.0 if token_id == BEST else 0.0 for token_id in range(VOCAB_SIZE)]


async def test_only_there_is_it_greedy() -> None:
    sampling = SamplingParams(temperature=100.0, seed=4)
    spans = EngineRequest([1], sampling=sampling, max_tokens=40, new_greedy_spans=EveryOther)
    none = EngineRequest([1], sampling=sampling, max_tokens=40, new_greedy_spans=lambda: None)
    async with open_rig(ScriptedModel(logits=logits)) as rig:
        async with rig.engine.submit(spans) as stream:
            ids, _ = await read_all(stream)
        async with rig.engine.submit(none) as stream:
            free, _ = await read_all(stream)
    assert set(ids[::2]) == {BEST}
    assert BEST not in ids[1::2]
    assert BEST not in free
    # Greedy tokens take no draw: what is drawn is what would be drawn without them.
    assert ids[1::2] == free[:20]
