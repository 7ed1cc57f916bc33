"""``ds4trio bench throughput | latency | prefill | compare | loop``: from flags to a table."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from ds4trio.bench.cases import measure
from ds4trio.bench.client import Target
from ds4trio.bench.command import server_process
from ds4trio.bench.plans import PLANS, add_plan, chosen_plan
from ds4trio.bench.storm import ENDED
from ds4trio.bench.tables import case_table, compare_table, comparison, loop_table
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ds4trio.bench.plans import CasePlan
    from ds4trio.config import Settings

P = TypeVar("P", bound="argparse.ArgumentParser")

HELP = {
    "throughput": "tokens a second of 1, 2, 4, 8 and 16 streams",
    "latency": "time to first token, and between tokens, of one stream",
    "prefill": "prompt tokens a second",
    "compare": "the same load against another OpenAI-compatible server, by turns",
    "loop": "the event loop's delay, and its CPU time a token, while a model computes",
}


def add_loads(
    loads: argparse._SubParsersAction[P],
    add_settings: Callable[[P], None],
) -> None:
    """A subcommand for each."""
    for name, plan in PLANS.items():
        parser = loads.add_parser(
            name,
            help=HELP[name],
            description="In this process." if name == "loop" else "Without --url, starts a server.",
        )
        if name == "compare":
            parser.add_argument("other", metavar="URL", help="the other server")
            parser.add_argument("--other-key", help="its API key")
        if name != "loop":
            parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000")
            parser.add_argument("--key", help="its API key")
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_plan(parser, plan)
        add_settings(parser)


def run_load(settings: Settings, options: argparse.Namespace) -> None:
    """Measure, and print. Raises: ConfigError."""
    plan = chosen_plan(options)
    if options.load == "loop":
        trio.run(_loop, settings, plan, options.json)
    else:
        trio.run(partial(_cases, settings, plan, options))


async def _cases(settings: Settings, plan: CasePlan, options: argparse.Namespace) -> None:
    seed = plan.seeded()
    async with AsyncExitStack() as stack:
        url = options.url or await stack.enter_async_context(server_process(settings))
        targets = [Target.parse(url, options.key)]
        if options.load == "compare":
            targets.append(Target.parse(options.other, options.other_key))
        with _failures_named():
            ours, *theirs = await measure(targets, plan.cases(), plan.rounds, seed)
    if theirs:
        rows, table = comparison(ours, theirs[0]), compare_table(ours, theirs[0])
    else:
        rows, table = [measured.as_dict() for measured in ours], case_table(ours)
    _show({"load": options.load, "seed": seed, "cases": rows}, table, as_json=options.json)


async def _loop(settings: Settings, plan: CasePlan, as_json: bool) -> None:
    # Imported here because they bring torch.
    from ds4trio.bench.loop import loop_figures
    from ds4trio.opening import open_service

    async with open_service(settings) as service:
        figures = [
            asdict(await loop_figures(service, settings, plan, streams)) for streams in plan.streams
        ]
    shown = "\n\n".join(loop_table(one) for one in figures)
    _show({"load": "loop", "cases": figures}, shown, as_json=as_json)


def _show(figures: dict[str, object], table: str, *, as_json: bool) -> None:
    cores, load = os.cpu_count(), os.getloadavg()[0]
    if as_json:
        print(json.dumps({**figures, "cores": cores, "load_average": load}, indent=2))
    else:
        print(f"{table}\n{cores} cores, load average {load:.1f}")


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except* ENDED as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise ConfigError(f"a server could not be measured: {error!r}") from None
