"""Loads that are the same for every server, and what was measured of them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import trio

from ds4trio.bench.answer import Answer, ask, first_model, prompt
from ds4trio.bench.figures import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.bench.client import Target


@dataclass(frozen=True, slots=True)
class Case:
    """So many streams begun at once, each with so long a prompt, to so many tokens."""

    streams: int
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """One go at a case, which took ``seconds`` from the first request to the last answer's end."""

    answers: tuple[Answer, ...]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Generated, by all streams together."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens of all streams until each has its first token."""
        return sum(answer.prompt_tokens for answer in self.answers) / max(
            answer.first_s for answer in self.answers
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """All goes at a case against one server."""

    case: Case
    rounds: tuple[Round, ...]

    @property
    def answers(self) -> list[Answer]:
        return [answer for one in self.rounds for answer in one.answers]

    def as_dict(self) -> dict[str, object]:
        """Medians over rounds; quantiles over all answers, and over all gaps of all answers."""
        firsts = [answer.first_s for answer in self.answers]
        gaps = [gap for answer in self.answers for gap in answer.gaps]
        return {
            "streams": self.case.streams,
            "prompt_tokens": median(answer.prompt_tokens for answer in self.answers),
            "generated_tokens": median(answer.tokens for answer in self.answers),
            "rounds": len(self.rounds),
            "tokens_per_s": median(one.tokens_per_s for one in self.rounds),
            "prompt_tokens_per_s": median(one.prompt_tokens_per_s for one in self.rounds),
            "first_token_p50_s": quantile(firsts, 0.5),
            "first_token_max_s": max(firsts),
            "inter_token_p50_s": quantile(gaps, 0.5),
            "inter_token_p99_s": quantile(gaps, 0.99),
        }


async def measure(
    targets: Sequence[Target], cases: Sequence[Case], rounds: int, seed: int
) -> list[list[Measured]]:
    """Each case against each target; a list for each target.

    All is asked once beforehand, with short answers, to warm up. Then, case by case, the targets
    take turns, so that what the machine does meanwhile meets them alike. No two prompts begin
    alike, and another ``seed`` makes all of them others. Raises: OSError, ConfigError.
    """
    models = [await first_model(target) for target in targets]
    found: list[list[list[Round]]] = [[[] for _ in cases] for _ in targets]
    for go in range(-1, rounds):  # the first is the warm-up
        for index, case in enumerate(cases):
            for server, (target, model) in enumerate(zip(targets, models, strict=True)):
                asked = case if go >= 0 else Case(case.streams, case.prompt_tokens, 2)
                done = await run_case(target, model, asked, f"{seed} {go} {index}")
                if go >= 0:
                    found[server][index].append(done)
    return [
        [Measured(case, tuple(goes)) for case, goes in zip(cases, of_one, strict=True)]
        for of_one in found
    ]


async def run_case(target: Target, model: str, case: Case, seed: str) -> Round:
    """One go. Raises: OSError, ConfigError."""
    answers: list[Answer] = []

    async def stream(number: int) -> None:
        text = prompt(case.prompt_tokens, f"{seed} {number}")
        answers.append(await ask(target, model, text, case.max_tokens))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(case.streams):
            nursery.start_soon(stream, number)
    return Round(tuple(answers), trio.current_time() - began)
