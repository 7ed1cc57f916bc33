"""What is told of the cache, in words."""

from __future__ import annotations

from typing import Literal

#: Where a prompt's beginning was found.
CacheSource = Literal["memory", "disk"]
#: Why something was dropped: for another prefix that is worth more, or for a running sequence.
EvictionReason = Literal["worth", "running"]
