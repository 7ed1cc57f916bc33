"""What each load asks for, and the flags that change it."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import randbelow
from typing import TYPE_CHECKING

from ds4trio.bench.cases import Case
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class CasePlan:
    """Each number of streams with each length of prompt. ``seed`` None: one of its own."""

    streams: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    rounds: int
    seed: int | None = None

    def cases(self) -> list[Case]:
        return [
            Case(streams, tokens, self.max_tokens)
            for tokens in self.prompt_tokens
            for streams in self.streams
        ]

    def seeded(self) -> int:
        """The seed, drawn now if none was given."""
        return randbelow(10**9) if self.seed is None else self.seed


#: The loads of which a server's whole speed is made. Lengths as in this project's measurements.
PLANS = {
    "throughput": CasePlan((1, 2, 4, 8, 16), (100,), max_tokens=128, rounds=3),
    "latency": CasePlan((1,), (100, 1000), max_tokens=64, rounds=5),
    "prefill": CasePlan((1,), (128, 512, 1024, 4096), max_tokens=1, rounds=3),
    "compare": CasePlan((1, 2, 4, 8, 16), (100,), max_tokens=128, rounds=5),
    "loop": CasePlan((8,), (100,), max_tokens=256, rounds=1),
}


def add_plan(parser: argparse.ArgumentParser, plan: CasePlan) -> None:
    """A flag for each field."""
    shown = ",".join(map(str, plan.streams))
    parser.add_argument("--streams", metavar="N,N", help=f"at once (default: {shown})")
    shown = ",".join(map(str, plan.prompt_tokens))
    parser.add_argument("--prompt-tokens", metavar="N,N", help=f"about (default: {shown})")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"of each answer (default: {plan.max_tokens})"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"(default: {plan.rounds})")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the prompts (default: another each time)"
    )


def chosen_plan(options: argparse.Namespace) -> CasePlan:
    """The load's plan with the flags that were given. Raises: ConfigError."""
    plan = PLANS[options.load]
    plan = CasePlan(
        streams=_counts("streams", options.streams) or plan.streams,
        prompt_tokens=_counts("prompt_tokens", options.prompt_tokens) or plan.prompt_tokens,
        max_tokens=plan.max_tokens if options.max_tokens is None else options.max_tokens,
        rounds=plan.rounds if options.rounds is None else options.rounds,
        seed=options.seed,
    )
    if plan.max_tokens < 1 or plan.rounds < 1:
        raise ConfigError("max_tokens and rounds must be 1 or more")
    return plan


def _counts(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not like 1,2,4") from None
    if min(counts) < 1:
        raise ConfigError(f"{name}: {min(counts)} is less than 1")
    return counts
