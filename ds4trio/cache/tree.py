"""Saved prefixes as a radix tree: what sequences have in common is there once.

::

    root ── system prompt ─┬─ a conversation ── its next turn
                           └─ another one

Pure structure: knows nothing of budgets, time, or who uses it. Runs on: worker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ds4trio.cache.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from ds4trio.models.base import StateLayout


class Use:
    """How often something was restored from, and when it was used last."""

    __slots__ = ("at", "hits")

    def __init__(self, at: float, hits: int = 0) -> None:
        self.at = at
        self.hits = hits


class Node:
    """A segment in its place. ``use`` is its rows', ``tip_use`` its tip's."""

    __slots__ = ("children", "parent", "segment", "tip_use", "use")

    def __init__(self, parent: Node | None, segment: Segment, at: float) -> None:
        self.parent = parent
        self.segment = segment
        #: By their first token: no two begin alike.
        self.children: dict[int, Node] = {}
        self.use = Use(at)
        self.tip_use = Use(at)

    @property
    def chain(self) -> list[Segment]:
        """From the tree's root to here."""
        chain: list[Segment] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            chain.append(node.segment)
            node = node.parent
        return chain[::-1]


class PrefixTree:
    """Segments by their tokens. ``nbytes`` is the size of them all."""

    def __init__(self, layout: StateLayout) -> None:
        self.root = Node(None, Segment(0, 0, (), {}), at=0.0)
        self.nbytes = 0
        self.has_tips = layout.tip_bytes > 0
        self._layout = layout

    def __iter__(self) -> Iterator[Node]:
        """All nodes but the root, parents before their children."""
        ahead = [*self.root.children.values()]
        while ahead:
            node = ahead.pop()
            yield node
            ahead += node.children.values()

    def walk(self, token_ids: tuple[int, ...]) -> tuple[list[Node], int]:
        """As far as these tokens lead: the nodes, and how many of the tokens they have. The last
        node may go on otherwise, or further.
        """
        path: list[Node] = []
        matched, node = 0, self.root
        while matched < len(token_ids):
            child = node.children.get(token_ids[matched])
            if child is None:
                break
            known = child.segment.token_ids
            common = common_length(known, token_ids[matched : matched + len(known)])
            path.append(child)
            matched += common
            if common < len(known):
                break
            node = child
        return path, matched

    def add(self, parent: Node, segment: Segment, at: float) -> Node:
        """A child that begins where ``parent`` stops, and like none of its other children."""
        assert segment.start == parent.segment.stop
        assert segment.token_ids[0] not in parent.children
        node = Node(parent, segment, at)
        parent.children[segment.token_ids[0]] = node
        self.nbytes += segment.nbytes
        return node

    def split(self, node: Node, position: int) -> Node:
        """Put a border into a node's segment; returns the new node before it, which has no tip."""
        assert node.parent is not None
        first, second = self._halves(node.segment, position)
        before = Node(node.parent, first, node.use.at)
        before.use.hits = node.use.hits
        node.parent.children[first.token_ids[0]] = before
        before.children[second.token_ids[0]] = node
        self.nbytes += first.nbytes + second.nbytes - node.segment.nbytes
        node.parent, node.segment = before, second
        return before

    def add_tip(self, node: Node, saved: Segment, at: float) -> None:
        """Give a node the tip of a segment that stops where it does."""
        assert saved.stop == node.segment.stop
        self._replace(node, node.segment.rows | saved.tip)
        node.tip_use = Use(at)

    def drop_tip(self, node: Node) -> None:
        """Of a node that others hang on: they need its rows."""
        self._replace(node, node.segment.rows)

    def remove(self, node: Node) -> None:
        """Forget a node that has no children."""
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.segment.token_ids[0]]
        self.nbytes -= node.segment.nbytes

    def last_place(self, path: Sequence[Node], matched: int) -> int:
        """The last one, up to ``matched`` tokens along a path, that can be restored; else 0."""
        if not self.has_tips:
            return matched
        stops = [node.segment.stop for node in path if node.segment.has_tip]
        return max((stop for stop in stops if stop <= matched), default=0)

    def place_before(self, node: Node) -> int:
        """The last one that could be restored if a node were not there, or had no tip."""
        if not self.has_tips:
            return node.segment.start
        above = node.parent
        while above is not None and not above.segment.has_tip:
            above = above.parent
        return above.segment.stop if above else 0

    def beginning(self, segment: Segment, position: int) -> dict[str, torch.Tensor]:
        """A segment's rows up to a position; not copies."""
        return self._rows(segment, segment.start, position)

    def _replace(self, node: Node, tensors: Mapping[str, torch.Tensor]) -> None:
        old = node.segment
        node.segment = replace(old, tensors=tensors)
        self.nbytes += node.segment.nbytes - old.nbytes

    def _halves(self, segment: Segment, position: int) -> tuple[Segment, Segment]:
        """Copies: a view would keep both in memory."""
        start, stop, ids = segment.start, segment.stop, segment.token_ids
        first = {n: t.clone() for n, t in self._rows(segment, start, position).items()}
        second = {n: t.clone() for n, t in self._rows(segment, position, stop).items()}
        border = position - start
        return (
            Segment(start, position, ids[:border], first),
            Segment(position, stop, ids[border:], second | segment.tip),
        )

    def _rows(self, segment: Segment, start: int, stop: int) -> dict[str, torch.Tensor]:
        rows = {}
        for name, row in self._layout.rows.items():
            skipped = segment.start // row.tokens
            first, end = start // row.tokens - skipped, stop // row.tokens - skipped
            rows[name] = segment.tensors[name].narrow(-2, first, end - first)
        return rows


def common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two sequences begin with alike."""
    same, most = 0, min(len(one), len(other))
    while same < most:  # halving: slices are compared at the speed of C
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same
