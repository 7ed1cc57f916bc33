"""States that remember nothing but token ids: what is restored can be compared with what was told.

One row a token, one row for each four tokens, and, in those with a tip, the tokens that wait for
their fourth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ds4trio.models.base import TIP, Rows, StateLayout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROWS = {"each": Rows(1, 8), "fours": Rows(4, 32)}
#: Three waiting tokens, and the length.
TIP_BYTES = 32


def layout(*, tips: bool) -> StateLayout:
    return StateLayout(ROWS, TIP_BYTES if tips else 0)


class ToyState:
    def __init__(self, token_ids: Sequence[int] = (), *, tips: bool = False) -> None:
        self.token_ids = list(token_ids)
        self._tips = tips

    @property
    def length(self) -> int:
        return len(self.token_ids)

    nbytes = 0

    def allocate(self, tokens: int) -> None: ...

    def save(self, start: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self.token_ids, dtype=torch.int64)
        whole = self.length // 4
        saved = {"each": ids[start:, None].clone()}
        saved["fours"] = ids[: 4 * whole].view(whole, 4)[start // 4 :].clone()
        if self._tips:
            waiting = [*self.token_ids[4 * whole :], 0, 0, 0][:3]
            saved[f"{TIP}waiting"] = torch.tensor([*waiting, self.length])
        return saved

    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        each = [i for piece in pieces for i in piece["each"][:, 0].tolist()]
        fours = [i for piece in pieces for i in piece["fours"].flatten().tolist()]
        if self._tips:
            *waiting, at = pieces[-1][f"{TIP}waiting"].tolist()
            assert at == length
            fours += waiting[: length % 4]
        assert each[: len(fours)] == fours
        assert len(each) == length
        assert len(fours) >= length - length % 4
        self.token_ids = each
