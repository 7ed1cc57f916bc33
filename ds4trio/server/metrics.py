"""What the server counts, in Prometheus' text format.

Each `Metrics` has a registry of its own, so that several servers can live in one process. The
engine's counters are not copied but read when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ds4trio.engine.stats import EngineStats
from ds4trio.server.disk_metrics import DiskCollector
from ds4trio.server.record import Outcome, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from ds4trio.cache.disk_stats import DiskStats
    from ds4trio.engine.messages import KvFigures
    from ds4trio.server.record import RequestRecord

# Bounds in seconds. Guesses: from a GPU's single step to a long prompt's prefill on a CPU.
WAIT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
RELEASE_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """One server's figures. Runs on: trio."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._requests = Counter(
            "ds4trio_requests",
            "Requests that have ended, by how.",
            ["protocol", "stream", "outcome"],
            registry=registry,
        )
        self._disconnects = Counter(
            "ds4trio_disconnects",
            "Clients that left or stopped reading, by where their request was.",
            ["phase"],
            registry=registry,
        )
        for phase in Phase:
            self._disconnects.labels(phase)
        self._first_token = Histogram(
            "ds4trio_time_to_first_token_seconds",
            "From the request's headers to its first token.",
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._inter_token = Histogram(
            "ds4trio_inter_token_seconds",
            "Between two tokens of one answer.",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self._queue = Histogram(
            "ds4trio_queue_seconds",
            "From being handed to the engine until its first step.",
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._release = Histogram(
            "ds4trio_release_seconds",
            "From knowing that the client is gone until the worker had let go.",
            buckets=RELEASE_BUCKETS,
            registry=registry,
        )
        ProcessCollector(registry=registry)
        self._engine = _EngineCollector()
        registry.register(self._engine)
        self._disk = DiskCollector()
        registry.register(self._disk)
        self._exposed = _WithoutCreated(registry)

    def watch_engine(self, stats: Callable[[], EngineStats | None]) -> None:
        """From where the engine's figures are read; None stands for no engine, and counts as 0."""
        self._engine.stats = stats

    def watch_disk(self, stats: Callable[[], DiskStats | None]) -> None:
        """As `watch_engine`, of the cache's folder."""
        self._disk.stats = stats

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended, once."""
        assert record.outcome is not None
        stream = "true" if record.stream else "false"
        self._requests.labels(record.protocol, stream, record.outcome).inc()
        if record.outcome in (Outcome.CLIENT_GONE, Outcome.STALLED):
            self._disconnects.labels(record.phase).inc()
        if record.first_token_at is not None:
            self._first_token.observe(record.first_token_at - record.started_at)
        if record.queued_s is not None:
            self._queue.observe(record.queued_s)
        if record.release_s is not None:
            self._release.observe(record.release_s)

    def inter_token(self, seconds: float) -> None:
        """Note the time between two tokens of one answer."""
        self._inter_token.observe(seconds)

    def render(self) -> tuple[bytes, str]:
        """All figures as of now, and their content type."""
        encode, content_type = choose_encoder("")
        return encode(self._exposed), content_type


class _EngineCollector(Collector):
    def __init__(self) -> None:
        self.stats: Callable[[], EngineStats | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats() or EngineStats()
        for name, help_, value in (
            ("engine_steps", "Forward passes.", stats.steps),
            ("prompt_tokens", "Prompt tokens computed or reused.", stats.prompt_tokens),
            (
                "cached_prompt_tokens",
                "Prompt tokens reused, not computed.",
                stats.cached_prompt_tokens,
            ),
            ("generated_tokens", "Tokens sampled.", stats.generated_tokens),
            ("drafted_tokens", "Tokens guessed ahead and computed.", stats.drafted_tokens),
            ("accepted_tokens", "Guessed tokens that proved right.", stats.accepted_tokens),
            (
                "wasted_prompt_tokens",
                "Prompt tokens computed after the server knew that the client was gone.",
                stats.wasted_prompt_tokens,
            ),
            (
                "wasted_generated_tokens",
                "Tokens computed after the server knew that the client was gone.",
                stats.wasted_generated_tokens,
            ),
        ):
            yield CounterMetricFamily(f"ds4trio_{name}", help_, value=value)
        sequences = GaugeMetricFamily(
            "ds4trio_sequences", "Sequences that the engine holds.", labels=["state"]
        )
        sequences.add_metric(["running"], stats.running)
        sequences.add_metric(["waiting"], stats.waiting)
        yield sequences
        yield from _kv_metrics(stats.kv)


def _kv_metrics(kv: KvFigures) -> Iterator[Metric]:
    nbytes = GaugeMetricFamily(
        "ds4trio_kv_bytes",
        "Memory for the states of sequences: granted to running ones, kept, and all there is.",
        labels=["state"],
    )
    nbytes.add_metric(["running"], kv.running_bytes)
    nbytes.add_metric(["cached"], kv.cached_bytes)
    nbytes.add_metric(["budget"], kv.budget_bytes)
    yield nbytes
    hits = CounterMetricFamily(
        "ds4trio_prefix_cache_hits",
        "Prompts of which a beginning was reused, by where it was found.",
        labels=["source"],
    )
    for source, count in kv.hits.items():
        hits.add_metric([source], count)
    yield hits
    yield CounterMetricFamily(
        "ds4trio_prefix_cache_misses", "Prompts computed from their first token.", value=kv.misses
    )
    evictions = CounterMetricFamily(
        "ds4trio_prefix_cache_evictions",
        "Pieces dropped from memory: for others that are worth more, or for a running sequence.",
        labels=["reason"],
    )
    for reason, count in kv.evictions.items():
        evictions.add_metric([reason], count)
    yield evictions


class _WithoutCreated(Collector):
    """The library's switch for ``_created`` series is global to the process, so they are left out
    on the way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
