"""A folder of segments with its writer, without a model: states are whatever a test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from ds4trio.cache.disk_folder import SegmentFolder
from ds4trio.cache.disk_identity import Identity
from ds4trio.cache.disk_stats import DiskStats
from ds4trio.cache.disk_store import DiskStore
from ds4trio.cache.disk_tensors import RowKind, StateKind
from ds4trio.cache.disk_writer import DiskWriter
from ds4trio.cache.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IDENTITY = Identity("a" * 64, "b" * 64, "fp32")
#: Rows for each token, rows for every four of them, and a tip: all that models have.
KIND = StateKind(
    {"kv": 1, "pooled": 4},
    {"kv": RowKind(torch.float32, (30, 2)), "pooled": RowKind(torch.bfloat16, (1,))},
    {"tip.window": torch.float32},
    torch.device("cpu"),
)
#: Rows only.
DENSE = StateKind({"kv": 1}, {"kv": KIND.rows["kv"]}, {}, torch.device("cpu"))


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Disk:
    """A process's view of a folder. ``write`` does the writer's work on the test's own thread."""

    cache_dir: Path
    identity: Identity = IDENTITY
    kind: StateKind = KIND
    budget_bytes: int = 1_000_000_000
    keep_token_ids: bool = False
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.folder = SegmentFolder(self.cache_dir)
        self.folder.prepare()
        self.stats = DiskStats()
        self.writer = DiskWriter(self.folder, self.budget_bytes, self.stats, self.clock)
        self.store = DiskStore(
            self.folder,
            self.identity,
            self.kind,
            self.writer,
            self.stats,
            budget_bytes=self.budget_bytes,
            keep_token_ids=self.keep_token_ids,
        )

    def keep(self, chain: Sequence[Segment]) -> None:
        """Offer and write."""
        self.store.offer(chain)
        self.write()

    def write(self) -> None:
        """All that is queued."""
        self.writer.work(self.writer.inbox.take_ready())

    def files(self) -> list[Path]:
        return sorted(self.folder.path.glob("*.safetensors"))

    def bad(self) -> list[str]:
        return [file.name for file in self.folder.bad.iterdir()]


def state(token_ids: Sequence[int], start: int, stop: int) -> dict[str, torch.Tensor]:
    """What the tokens before ``stop`` have left behind from ``start`` on: says which they were."""
    ids = torch.tensor(token_ids[:stop], dtype=torch.float32)
    sums = ids.cumsum(0)
    kv = torch.stack((ids, sums), -1).repeat(30, 1, 1)
    groups = ids[: stop // 4 * 4].view(-1, 4).sum(1, keepdim=True)
    return {
        "kv": kv[:, start:].contiguous(),
        "pooled": groups[start // 4 :].to(torch.bfloat16),
        "tip.window": ids[-min(stop, 8) :].clone()[None],
    }


def chain(token_ids: Sequence[int], *borders: int, tips: Sequence[int] = ()) -> list[Segment]:
    """As memory would hold it; the last one has a tip, and those that stop at ``tips``."""
    segments = []
    for start, stop in pairwise((0, *borders)):
        tensors = state(token_ids, start, stop)
        if stop != borders[-1] and stop not in tips:
            del tensors["tip.window"]
        segments.append(Segment(start, stop, tuple(token_ids[start:stop]), tensors))
    return segments


def dense_chain(token_ids: Sequence[int], *borders: int) -> list[Segment]:
    """As a model without tips has it."""
    return [
        Segment(s.start, s.stop, s.token_ids, {"kv": s.tensors["kv"]})
        for s in chain(token_ids, *borders)
    ]


def joined(segments: Sequence[Segment]) -> dict[str, torch.Tensor]:
    """The state at a chain's end."""
    names = {name for segment in segments for name in segment.tensors if name != "tip.window"}
    rows = {name: torch.cat([s.tensors[name] for s in segments], -2) for name in names}
    tips = {n: t for n, t in segments[-1].tensors.items() if n == "tip.window"}
    return rows | tips


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )
