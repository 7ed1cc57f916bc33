"""Measurements for people. Times in milliseconds, speeds in tokens a second."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.bench.cases import Measured

COLUMNS = (
    ("streams", "streams", 1),
    ("prompt_tokens", "prompt", 1),
    ("generated_tokens", "answer", 1),
    ("tokens_per_s", "tokens/s", 1),
    ("prompt_tokens_per_s", "prompt/s", 1),
    ("first_token_p50_s", "first ms", 1000),
    ("first_token_max_s", "latest ms", 1000),
    ("inter_token_p50_s", "gap p50", 1000),
    ("inter_token_p99_s", "gap p99", 1000),
)
#: What of a case is compared, and whether more is better.
COMPARED = (("tokens_per_s", True), ("prompt_tokens_per_s", True), ("first_token_p50_s", False))


def case_table(measured: Sequence[Measured]) -> str:
    """A line for each case."""
    lines = ["".join(f"{title:>11}" for _, title, _ in COLUMNS)]
    for row in measured:
        figures = row.as_dict()
        lines.append("".join(f"{_figure(figures[name], unit):>11}" for name, _, unit in COLUMNS))
    lines.append(
        "streams begun at once; tokens/s of all together, first request to last answer's end;\n"
        "prompt/s until each has its first token; first: time to first token, median and longest;\n"
        "gap: ms between pieces of text; medians of rounds"
    )
    return "\n".join(lines)


def ratios(ours: Measured, theirs: Measured) -> dict[str, list[float]]:
    """How many times better ours is, for each pair of rounds that followed each other."""
    pairs = list(zip(ours.rounds, theirs.rounds, strict=True))
    return {
        "tokens_per_s": [a.tokens_per_s / b.tokens_per_s for a, b in pairs],
        "prompt_tokens_per_s": [a.prompt_tokens_per_s / b.prompt_tokens_per_s for a, b in pairs],
        "first_token_p50_s": [
            median(x.first_s for x in b.answers) / median(x.first_s for x in a.answers)
            for a, b in pairs
        ],
    }


def comparison(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[dict[str, object]]:
    """Each case of both, and median, least and greatest of its ratios."""
    rows = []
    for a, b in zip(ours, theirs, strict=True):
        found = {
            name: {"median": median(values), "min": min(values), "max": max(values)}
            for name, values in ratios(a, b).items()
        }
        rows.append({"a": a.as_dict(), "b": b.as_dict(), "times_better": found})
    return rows


def compare_table(ours: Sequence[Measured], theirs: Sequence[Measured]) -> str:
    """A line for each case, and three columns for each figure: A, B, and how A does."""
    titles = ("tokens/s A", "B", "A/B", "prompt/s A", "B", "A/B", "first ms A", "B", "B/A")
    widths = (11, 8, 19) * 3
    head = f"{'streams':>8}{'prompt':>8}"
    lines = [head + "".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True))]
    for a, b in zip(ours, theirs, strict=True):
        left, right, better = a.as_dict(), b.as_dict(), ratios(a, b)
        line = f"{a.case.streams:>8}{a.case.prompt_tokens:>8}"
        for name, _ in COMPARED:
            unit = 1000 if name.endswith("_s") and "per" not in name else 1
            values = better[name]
            spread = f"{median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
            line += f"{_figure(left[name], unit):>11}{_figure(right[name], unit):>8}{spread:>19}"
        lines.append(line)
    lines.append("ratios: median of rounds [least-greatest]; above 1, A is the better")
    return "\n".join(lines)


def loop_table(figures: Mapping[str, object]) -> str:
    """A line for each figure."""
    return "\n".join(f"{name:28}{_figure(value, 1):>12}" for name, value in figures.items())


def _figure(value: object, unit: int) -> str:
    if value is None:
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    scaled = value * unit
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"
