"""Who goes first when memory is short: what is worth least, and nothing that others hang on.

Runs on: worker.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.cache.worth import cost, score

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ds4trio.cache.tree import Node, PrefixTree


@dataclass(frozen=True, slots=True)
class Victim:
    """A node on which nothing hangs, or the tip alone of one that others need."""

    node: Node
    tip_only: bool
    nbytes: int
    score: float


def cheapest_first(tree: PrefixTree, but: Collection[Node] = ()) -> Iterator[Victim]:
    """All that could go, one after the other, as if those before had gone. Whether they have does
    not matter. Nodes in ``but`` stay, if perhaps without a tip.
    """
    return _Pass(tree, but).victims()


class _Pass:
    """One look through a tree."""

    def __init__(self, tree: PrefixTree, but: Collection[Node]) -> None:
        self._tree = tree
        self._kept = set(but)
        self._children = {node: len(node.children) for node in tree}
        self._tips_gone: set[Node] = set()
        self._heap: list[tuple[float, int, Victim]] = []
        self._order = itertools.count()  # nodes have none
        for node in self._children:
            self._add(node)

    def victims(self) -> Iterator[Victim]:
        while self._heap:
            _, _, victim = heapq.heappop(self._heap)
            node = victim.node
            if victim.tip_only and not self._children[node]:
                continue  # it stands in the heap as a whole by now
            yield victim
            if victim.tip_only:
                self._tips_gone.add(node)
            elif node.parent in self._children:
                self._children[node.parent] -= 1
                if not self._children[node.parent]:
                    self._add(node.parent)

    def _add(self, node: Node) -> None:
        tip_only = self._children[node] > 0
        tip_bytes = sum(tensor.nbytes for tensor in node.segment.tip.values())
        nbytes = tip_bytes if tip_only else node.segment.nbytes
        if node in self._tips_gone:
            nbytes -= tip_bytes
            tip_bytes = 0
        if (tip_only and not tip_bytes) or (node in self._kept and not tip_only):
            return
        lost = 0.0  # rows that no tip goes on from are of no use
        if tip_bytes or not self._tree.has_tips:
            lost = cost(self._tree.place_before(node), node.segment.stop)
        worth = score(lost, nbytes, node.tip_use if tip_only else node.use)
        victim = Victim(node, tip_only, nbytes, worth)
        heapq.heappush(self._heap, (worth, next(self._order), victim))
