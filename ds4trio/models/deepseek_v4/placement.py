"""Where routed experts live: on the device, or elsewhere with the hot ones copied to it.

Nearly all of a model's weights are routed experts, of which a token needs a few. So attention
and what every token needs go to the device, and experts may stay in page-locked memory or
memory-mapped in the checkpoint's files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import torch

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from ds4trio.models.deepseek_v4.moe import Expert
    from ds4trio.models.options import ModelOptions


@dataclass(frozen=True, slots=True)
class Placement:
    """``home`` of the routed experts. ``hot_bytes``: room on the device for copies of some.

    device: all are on the device. pinned: in page-locked memory, which needs a GPU.
    mapped: in the checkpoint's files, as the system's file cache has room for them.
    """

    home: Literal["device", "pinned", "mapped"] = "device"
    hot_bytes: int = 0


#: Kept free on a GPU for sequences and intermediate results. A guess.
_RESERVED_BYTES = 8 << 30


def chosen(options: ModelOptions, experts_bytes: int, device: torch.device) -> Placement:
    """As set; what is left open, as fits. Raises: LoadError if there is no such place."""
    if options.experts == "pinned" and device.type == "cpu":
        raise LoadError("experts: pinned memory is for a GPU to read: choose device or mapped")
    home = options.experts
    if home == "auto":
        home = fitting(experts_bytes, device).home
    hot_bytes = options.experts_hot_bytes
    if hot_bytes is None:
        hot_bytes = 0 if home == "device" else _room(device)
    return Placement(home, hot_bytes)


def fitting(experts_bytes: int, device: torch.device) -> Placement:
    """All experts on the device if they fit beside what is there, else as many as do."""
    if device.type == "cpu":
        return Placement("device")  # which leaves them mapped
    free, _ = torch.cuda.mem_get_info(device)
    return fitting_in(experts_bytes, free)


def _room(device: torch.device) -> int:
    """For copies of experts. On a CPU they would be no nearer."""
    if device.type == "cpu":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return max(0, free - _RESERVED_BYTES)


def fitting_in(experts_bytes: int, free_bytes: int) -> Placement:
    """``fitting`` for a GPU with so much free memory."""
    room = max(0, free_bytes - _RESERVED_BYTES)
    return Placement("device") if experts_bytes <= room else Placement("mapped", room)


class HotExperts:
    """Copies on the device of the experts used last, of all layers, within a number of bytes.

    Runs on: worker.
    """

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._copies: OrderedDict[tuple[int, int], Expert] = OrderedDict()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: tuple[int, int], expert: Expert) -> Expert:
        """The copy of an expert, by layer and number; the longest unused make room for it."""
        found = self._copies.get(key)
        if found is not None:
            self.hits += 1
            self._copies.move_to_end(key)
            return found
        self.misses += 1
        while self._copies and self.nbytes + expert.nbytes > self._most_bytes:
            _, old = self._copies.popitem(last=False)
            self.nbytes -= old.nbytes
        copy = expert.to(self._device)
        if expert.nbytes <= self._most_bytes:
            self._copies[key] = copy
            self.nbytes += expert.nbytes
        return copy


class VisitingExperts(Sequence["Expert"]):
    """A layer's experts, each brought to the device when asked for."""

    def __init__(self, layer: int, home: Sequence[Expert], hot: HotExperts) -> None:
        self._layer = layer
        self._home = home
        self._hot = hot

    def __len__(self) -> int:
        return len(self._home)

    @overload
    def __getitem__(self, index: int) -> Expert: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Expert]: ...
    def __getitem__(self, index: int | slice) -> Expert | Sequence[Expert]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._hot.get((self._layer, index), self._home[index])


def place(
    layers: Sequence[Sequence[Expert]], placement: Placement, device: torch.device
) -> list[Sequence[Expert]]:
    """Each layer's experts, put where the placement says."""
    hot = HotExperts(device, placement.hot_bytes)
    placed: list[Sequence[Expert]] = []
    for index, experts in enumerate(layers):
        match placement.home:
            case "device":
                placed.append([expert.to(device) for expert in experts])
            case "pinned":
                placed.append(VisitingExperts(index, [e.pinned() for e in experts], hot))
            case "mapped":
                placed.append(VisitingExperts(index, experts, hot))
    return placed
