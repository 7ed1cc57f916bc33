from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ds4trio.cache.disk_stats import DiskStats
from ds4trio.engine.stats import EngineStats
from ds4trio.server.metrics import Metrics
from ds4trio.server.record import Outcome, Phase, RequestRecord

HISTOGRAMS = {
    "ds4trio_time_to_first_token_seconds",
    "ds4trio_inter_token_seconds",
    "ds4trio_queue_seconds",
    "ds4trio_release_seconds",
}

OUTCOMES = [
    "completed",
    "client_gone",
    "stalled",
    "deadline",
    "cancelled",
    "rejected",
    "failed",
    "shutdown",
]


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and labels, as a scraper reads them."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")
    return {
        " ".join([sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))]): value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        for value in [sample.value]
    }


def ended(outcome: Outcome, phase: Phase, *, stream: bool = True) -> RequestRecord:
    record = RequestRecord("id", "chat", "client", started_at=100.0, stream=stream, phase=phase)
    record.outcome = outcome
    return record


def test_the_names_are_those_that_were_promised() -> None:
    metrics = Metrics()
    metrics.observe(ended(Outcome.CLIENT_GONE, Phase.DECODE))
    names = {sample.split()[0] for sample in samples(metrics)}
    names -= {name for name in names if name.startswith("process_")}  # the library's own
    parts = {h + part for h in HISTOGRAMS for part in ("_bucket", "_sum", "_count")}
    assert names == parts | {
        "ds4trio_requests_total",
        "ds4trio_disconnects_total",
        "ds4trio_engine_steps_total",
        "ds4trio_prompt_tokens_total",
        "ds4trio_cached_prompt_tokens_total",
        "ds4trio_cache_disk_bytes",
        "ds4trio_cache_disk_written_bytes_total",
        "ds4trio_cache_disk_evicted_bytes_total",
        "ds4trio_cache_disk_dropped_bytes_total",
        "ds4trio_cache_disk_lookups_total",
        "ds4trio_generated_tokens_total",
        "ds4trio_drafted_tokens_total",
        "ds4trio_accepted_tokens_total",
        "ds4trio_wasted_prompt_tokens_total",
        "ds4trio_wasted_generated_tokens_total",
        "ds4trio_kv_bytes",
        "ds4trio_prefix_cache_hits_total",
        "ds4trio_prefix_cache_misses_total",
        "ds4trio_prefix_cache_evictions_total",
        "ds4trio_sequences",
    }


def test_types_are_declared() -> None:
    lines = Metrics().render()[0].decode().splitlines()
    assert "# TYPE ds4trio_requests_total counter" in lines
    assert "# TYPE ds4trio_engine_steps_total counter" in lines
    assert "# TYPE ds4trio_sequences gauge" in lines
    assert {f"# TYPE {name} histogram" for name in HISTOGRAMS} <= set(lines)


def test_requests_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    for outcome in Outcome:
        metrics.observe(ended(outcome, Phase.WRITE))
    metrics.observe(ended(Outcome.COMPLETED, Phase.WRITE, stream=False))
    metrics.observe(ended(Outcome.COMPLETED, Phase.WRITE, stream=False))
    seen = {k: v for k, v in samples(metrics).items() if k.startswith("ds4trio_requests_total")}
    expected = {
        f"ds4trio_requests_total outcome={outcome} protocol=chat stream=true": 1.0
        for outcome in OUTCOMES
    }
    expected["ds4trio_requests_total outcome=completed protocol=chat stream=false"] = 2.0
    assert seen == expected


@pytest.mark.parametrize("outcome", Outcome)
def test_disconnects_are_counted_by_where_the_request_was(outcome: Outcome) -> None:
    metrics = Metrics()
    metrics.observe(ended(outcome, Phase.PREFILL))
    seen = {k: v for k, v in samples(metrics).items() if k.startswith("ds4trio_disconnects")}
    left = outcome in (Outcome.CLIENT_GONE, Outcome.STALLED)
    assert seen == {
        f"ds4trio_disconnects_total phase={phase}": float(left and phase == "prefill")
        for phase in ("body", "tokenize", "queue", "prefill", "decode", "write")
    }


def test_times_go_into_their_histograms() -> None:
    metrics = Metrics()
    record = ended(Outcome.CLIENT_GONE, Phase.DECODE)
    record.first_token_at = 100.75
    record.queued_s = 0.03
    record.release_s = 0.002
    metrics.observe(record)
    metrics.observe(ended(Outcome.REJECTED, Phase.BODY))
    for seconds in (0.001, 0.02, 0.03):
        metrics.inter_token(seconds)
    seen = samples(metrics)
    assert {name: seen[f"{name}_count"] for name in HISTOGRAMS} == {
        "ds4trio_time_to_first_token_seconds": 1,
        "ds4trio_queue_seconds": 1,
        "ds4trio_release_seconds": 1,
        "ds4trio_inter_token_seconds": 3,
    }
    assert seen["ds4trio_time_to_first_token_seconds_sum"] == 0.75
    assert seen["ds4trio_time_to_first_token_seconds_bucket le=0.5"] == 0
    assert seen["ds4trio_time_to_first_token_seconds_bucket le=1.0"] == 1
    assert seen["ds4trio_queue_seconds_sum"] == 0.03
    assert seen["ds4trio_release_seconds_sum"] == 0.002
    # A bucket holds its upper bound.
    assert seen["ds4trio_inter_token_seconds_bucket le=0.001"] == 1
    assert seen["ds4trio_inter_token_seconds_bucket le=0.025"] == 2
    assert seen["ds4trio_inter_token_seconds_bucket le=+Inf"] == 3


ENGINE = {
    "ds4trio_engine_steps_total": 1,
    "ds4trio_prompt_tokens_total": 2,
    "ds4trio_cached_prompt_tokens_total": 3,
    "ds4trio_generated_tokens_total": 4,
    "ds4trio_drafted_tokens_total": 9,
    "ds4trio_accepted_tokens_total": 10,
    "ds4trio_wasted_prompt_tokens_total": 5,
    "ds4trio_wasted_generated_tokens_total": 6,
    "ds4trio_sequences state=running": 7,
    "ds4trio_sequences state=waiting": 8,
}


def test_the_engines_figures_are_read_when_asked_for() -> None:
    stats: EngineStats | None = None
    metrics = Metrics()
    metrics.watch_engine(lambda: stats)
    none = samples(metrics)
    assert {name: none[name] for name in ENGINE} == dict.fromkeys(ENGINE, 0)
    stats = EngineStats(
        steps=1,
        prompt_tokens=2,
        cached_prompt_tokens=3,
        generated_tokens=4,
        wasted_prompt_tokens=5,
        wasted_generated_tokens=6,
        drafted_tokens=9,
        accepted_tokens=10,
        running=7,
        waiting=8,
    )
    assert ENGINE.items() <= samples(metrics).items()
    stats.steps += 1
    assert samples(metrics)["ds4trio_engine_steps_total"] == 2


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.observe(ended(Outcome.COMPLETED, Phase.WRITE))
    assert not any(name.startswith("ds4trio_requests") for name in samples(other))


def test_what_the_folder_holds_is_read_when_asked() -> None:
    metrics, stats = Metrics(), DiskStats()
    metrics.watch_disk(lambda: stats)
    stats.folder_bytes, stats.written_bytes, stats.evicted_bytes = 1, 2, 3
    stats.refused_bytes, stats.unqueued_bytes, stats.hits, stats.misses = 4, 5, 6, 7
    found = {n: v for n, v in samples(metrics).items() if n.startswith("ds4trio_cache_disk")}
    assert found == {
        "ds4trio_cache_disk_bytes": 1,
        "ds4trio_cache_disk_written_bytes_total": 2,
        "ds4trio_cache_disk_evicted_bytes_total": 3,
        "ds4trio_cache_disk_dropped_bytes_total": 9,
        "ds4trio_cache_disk_lookups_total result=hit": 6,
        "ds4trio_cache_disk_lookups_total result=miss": 7,
    }
