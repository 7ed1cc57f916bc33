"""What the cache's folder holds and has done, in Prometheus' words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ds4trio.cache.disk_stats import DiskStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric


class DiskCollector(Collector):
    """``stats`` is from where the figures are read when they are asked for; None counts as 0."""

    def __init__(self) -> None:
        self.stats: Callable[[], DiskStats | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats() or DiskStats()
        yield GaugeMetricFamily(
            "ds4trio_cache_disk_bytes",
            "What the files in cache_dir take together.",
            value=stats.folder_bytes,
        )
        for name, help_, value in (
            ("written", "Written to cache_dir.", stats.written_bytes),
            ("evicted", "Removed from cache_dir to make room.", stats.evicted_bytes),
            (
                "dropped",
                "Not written to cache_dir: the disk was too slow, full, or written too much.",
                stats.dropped_bytes,
            ),
        ):
            yield CounterMetricFamily(f"ds4trio_cache_disk_{name}_bytes", help_, value=value)
        lookups = CounterMetricFamily(
            "ds4trio_cache_disk_lookups",
            "Prompts looked for in cache_dir, since memory did not have all of them.",
            labels=["result"],
        )
        lookups.add_metric(["hit"], stats.hits)
        lookups.add_metric(["miss"], stats.misses)
        yield lookups
