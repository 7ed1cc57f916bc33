"""A server's own figures, read from ``/metrics`` and compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.bench.client import Target

RELEASE = "ds4trio_release_seconds_bucket"
#: What must be back where it was once nobody is there any more.
AT_REST = (
    'ds4trio_sequences{state="running"}',
    'ds4trio_sequences{state="waiting"}',
    "process_open_fds",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Samples by their name with labels, as in the text format."""

    samples: Mapping[str, float]

    @classmethod
    async def read(cls, target: Target) -> Figures:
        """Raises: OSError."""
        text = (await target.get("/metrics")).decode()
        samples = {}
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
                samples[f"{name}{{{inside}}}" if inside else name] = value
        return cls(samples)

    def grown(self, name: str, since: Figures) -> int:
        return int(self.samples.get(name, 0) - since.samples.get(name, 0))

    def left_behind(self, since: Figures) -> dict[str, float]:
        """What is still held beyond what was held then."""
        grown = {
            name: self.samples[name] - since.samples.get(name, 0)
            for name in AT_REST
            if name in self.samples
        }
        return {name: more for name, more in grown.items() if more > 0}

    def release_quantiles(self, since: Figures) -> tuple[float | None, float | None]:
        """Upper bounds of the buckets that hold the median and the 99th percentile of the time
        from knowing that a client is gone until the worker let go; None if nobody left."""
        counts = sorted(
            (float(name.partition('le="')[2].rstrip('"}')), self.grown(name, since))
            for name in self.samples
            if name.startswith(RELEASE)
        )
        total = counts[-1][1] if counts else 0
        if not total:
            return None, None
        median, tail = (
            next(bound for bound, count in counts if count >= share * total)
            for share in (0.5, 0.99)
        )
        return median, None if tail == inf else tail


def quantile(values: Sequence[float], share: float) -> float | None:
    """The least of the values that is no less than ``share`` of them; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
