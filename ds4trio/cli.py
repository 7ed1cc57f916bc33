"""The command line: `main` reads it and hands each command to the rooms that do it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import shtab

from ds4trio.bench.cache import CachePlan
from ds4trio.bench.loads import add_loads, run_load
from ds4trio.bench.storm import StormPlan
from ds4trio.config import DEFAULT_MODEL, Settings, convert, describe, given_settings, load_settings
from ds4trio.errors import ConfigError, Ds4TrioError

if TYPE_CHECKING:
    from collections.abc import Collection

#: Settings that say what is loaded.
_OF_A_MODEL = ("context_tokens", "dtype", "device", "prompt_contract")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit: 0, 1 (one line says why), or 2 (bad usage)."""
    options = _parser().parse_args(arguments)
    # Read by OpenMP when torch is loaded. Threads that wait by spinning, its default, take the
    # cores from the event loop and from each other: 2 to 3 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        match options.command:
            case "serve":
                _serve(options)
            case "inspect":
                _inspect(_settings(options), as_json=options.json)
            case "completion":
                print(shtab.complete(_parser(), options.shell))
            case "config":
                _config(options)
            case "pull":
                _pull(options.model)
            case "cache":
                _cache(options)
            case "bench" if options.load == "storm":
                _bench_storm(options)
            case "bench" if options.load == "cache":
                _bench_cache(options)
            case "bench":
                run_load(_settings(options), options)
    except* Ds4TrioError as group:
        sys.exit(f"ds4trio: {_first_line(group)}")
    except* KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ds4trio", description="An LLM server that stops when the client leaves.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model. Every flag is also a DS4TRIO_ variable and a TOML key.",
    )
    _add_settings(serve)
    serve.add_argument(
        "--dry-run", action="store_true", help="say what it would load, as inspect does, and exit"
    )

    inspect = commands.add_parser(
        "inspect",
        help="what a model is, what it needs, and whether it fits this machine",
        description="Loads nothing large. Exits with 1 if the model does not fit.",
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(inspect, only=_OF_A_MODEL)

    config = commands.add_parser(
        "config",
        help="each setting and where it comes from",
        description="Takes the flags of serve. What it prints is a file for --config.",
    )
    _add_settings(config)

    completion = commands.add_parser(
        "completion",
        help="print a shell's completion of these commands",
        description='For bash: eval "$(ds4trio completion bash)"',
    )
    completion.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)

    pull = commands.add_parser("pull", help="fetch and prepare a model, without serving it")
    pull.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    _add_cache(commands)
    bench = commands.add_parser("bench", help="measure a server")
    loads = bench.add_subparsers(dest="load", required=True, parser_class=_Parser)
    _add_storm(loads)
    _add_bench_cache(loads)
    add_loads(loads, _add_settings)
    return parser


def _add_cache(commands: argparse._SubParsersAction[_Parser]) -> None:
    cache = commands.add_parser("cache", help="what cache_dir holds: list, remove, verify")
    verbs = cache.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    ls = verbs.add_parser("ls", help="list prefixes, those used last first")
    ls.add_argument("--json", action="store_true", help="print JSON")
    rm = verbs.add_parser("rm", help="remove prefixes, but for what others share with them")
    rm.add_argument("prefixes", nargs="*", metavar="PREFIX", help="as ls names them")
    rm.add_argument("--all", action="store_true", help="all of them")
    verify = verbs.add_parser(
        "verify",
        help="read all files, and set aside those that are damaged",
        description="Exits with 1 if there are any.",
    )
    for verb in (ls, rm, verify):
        verb.add_argument("--cache-dir", metavar="PATH", help="default: DS4TRIO_CACHE_DIR")
        verb.add_argument("--config", type=Path, help="a TOML file of settings")


def _add_storm(loads: argparse._SubParsersAction[_Parser]) -> None:
    storm = loads.add_parser(
        "storm",
        help="clients that leave, by the hundred, and what they leave behind",
        description="Exits with 1 if anything is left behind. Without --url, a server is started.",
    )
    storm.add_argument("--url", help="a running server, such as http://127.0.0.1:8000")
    storm.add_argument("--key", help="its API key")
    storm.add_argument("--json", action="store_true", help="print JSON")
    for spec in fields(StormPlan):
        storm.add_argument(
            "--" + spec.name.replace("_", "-"),
            dest="plan_" + spec.name,
            type=type(spec.default),
            default=spec.default,
            metavar="N",
            help=f"(default: {spec.default})",
        )
    _add_settings(storm)


def _add_bench_cache(loads: argparse._SubParsersAction[_Parser]) -> None:
    cache = loads.add_parser(
        "cache",
        help="the first token's time of prompts computed, remembered, and read from disk",
        description="Starts servers of its own, with a temporary cache_dir.",
    )
    plan = CachePlan()
    lengths = " ".join(map(str, plan.tokens))
    cache.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=plan.tokens,
        metavar="N",
        help=f"lengths of prompts (default: {lengths})",
    )
    cache.add_argument(
        "--repeats",
        type=int,
        default=plan.repeats,
        metavar="N",
        help=f"prompts of each length (default: {plan.repeats})",
    )
    cache.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(cache)


def _add_settings(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    parser.add_argument("model", nargs="?", help=f"what to serve (default: {DEFAULT_MODEL})")
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    for name, kind, default, help_ in describe():
        if name == "model" or (only is not None and name not in only):
            continue
        flag = "--" + name.replace("_", "-")
        shown = help_ if default in (None, ()) else f"{help_} (default: {default})"
        if isinstance(default, bool):
            parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=help_)
        else:
            words = kind.removeprefix("one of ")
            metavar = words.upper().split()[-1] if words == kind else words.replace(", ", "|")
            parser.add_argument(flag, dest=name, metavar=metavar, help=shown)


def _flags(options: argparse.Namespace) -> dict[str, object]:
    flags: dict[str, object] = {}
    for name, *_ in describe():
        value = getattr(options, name, None)
        if value is not None:  # given: perhaps as an empty text, which stands for None
            flag = "--" + name.replace("_", "-")
            flags[name] = convert(name, value, flag) if isinstance(value, str) else value
    return flags


def _settings(options: argparse.Namespace) -> Settings:
    return load_settings(_flags(options), file=options.config)


def _config(options: argparse.Namespace) -> None:
    settings = _settings(options)
    given = given_settings(_flags(options), file=options.config)
    for name, *_ in describe():
        value = getattr(settings, name)
        source = given[name][1] if name in given else "default"
        # JSON's texts, numbers, lists and truth are TOML's, which has no null.
        shown = json.dumps(str(value.absolute()) if isinstance(value, Path) else value)
        print(
            f"# {name} is not set: {source}" if value is None else f"{name} = {shown}  # {source}"
        )


def _inspect(settings: Settings, *, as_json: bool = False) -> None:
    from ds4trio.inspect_model import inspect_model

    report = inspect_model(settings)
    print(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(report.lines()))
    if report.verdict.fits == "no":
        sys.exit(1)


def _serve(options: argparse.Namespace) -> None:
    settings = _settings(options)
    if options.dry_run:
        _inspect(settings)
        return
    # Imported here so that a wrong flag is answered at once: these bring torch.
    import trio

    from ds4trio.logs import configure
    from ds4trio.opening import open_service
    from ds4trio.server.serve import for_good, serve_until_signal

    configure(settings.log_format)
    trio.run(serve_until_signal, settings, for_good(open_service))


def _cache(options: argparse.Namespace) -> None:
    from ds4trio.cache import disk_command

    cache_dir = _settings(options).cache_dir
    if cache_dir is None:
        raise ConfigError("cache_dir is not set: give --cache-dir or DS4TRIO_CACHE_DIR")
    match options.verb:
        case "ls":
            prefixes = disk_command.kept_prefixes(cache_dir)
            if options.json:
                print(json.dumps([prefix.as_dict() for prefix in prefixes], indent=2))
            else:
                print(disk_command.prefix_table(prefixes))
        case "rm":
            if options.all == bool(options.prefixes):
                raise ConfigError("name prefixes, or say --all")
            keys = None if options.all else options.prefixes
            files, nbytes = disk_command.remove_prefixes(cache_dir, keys)
            print(f"removed {files} files, {nbytes / 1e6:,.1f} MB")
        case "verify":
            read, damaged = disk_command.damaged_files(cache_dir)
            for name, reason in damaged:
                print(f"{name}: set aside: {reason}")
            print(f"{read} files read, {len(damaged)} damaged")
            if damaged:
                sys.exit(1)


def _bench_storm(options: argparse.Namespace) -> None:
    from ds4trio.bench.command import BenchOptions, run_storm

    chosen = {spec.name: getattr(options, "plan_" + spec.name) for spec in fields(StormPlan)}
    bench = BenchOptions(options.url, options.key, options.json)
    if not run_storm(_settings(options), StormPlan(**chosen), bench):
        sys.exit(1)


def _bench_cache(options: argparse.Namespace) -> None:
    from ds4trio.bench.cache import run_cache

    plan = CachePlan(tuple(options.tokens), options.repeats)
    run_cache(_settings(options), plan, as_json=options.json)


def _pull(model: str) -> None:
    from ds4trio.store.resolve import pull_model

    print(pull_model(model).path)


def _first_line(group: BaseExceptionGroup[Ds4TrioError]) -> str:
    error = group.exceptions[0]
    return _first_line(error) if isinstance(error, BaseExceptionGroup) else error.message


if __name__ == "__main__":
    main()
