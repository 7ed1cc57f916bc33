"""What a model is and needs, told before anything large is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """Units: bytes of memory once the model is loaded, on whatever device."""

    family: str
    parameters: int
    layers: int
    vocab_size: int
    #: Longest sequence served: the model's own maximum, or less if so asked.
    context_tokens: int
    weights_bytes: int
    #: Of ``weights_bytes``, what may live elsewhere than on the device: routed experts.
    experts_bytes: int
    #: Whether ``weights_bytes`` is counted from the files' headers, or follows from the settings.
    from_files: bool
    #: What one sequence of so many tokens holds. While it grows, up to twice as much is reserved.
    state_bytes: Callable[[int], int]
