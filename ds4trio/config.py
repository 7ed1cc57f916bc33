"""Settings: one frozen dataclass whose fields are flags, TOML keys and ``DS4TRIO_`` variables.

A field's name is its name everywhere (``--max-running``, ``max_running``, ``DS4TRIO_MAX_RUNNING``)
and carries its unit. Later sources win: default, file, environment, flag.
"""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX = "DS4TRIO_"
#: ``DS4TRIO_`` variables that are not settings: where models are kept, and the settings file.
HOME_VARIABLE = "DS4TRIO_HOME"
FILE_VARIABLE = "DS4TRIO_CONFIG"

DEFAULT_MODEL = "smollm2-135m-instruct"

DAY_S = 86400
#: How a DeepSeek V4 was trained to be told to think harder, and where its routed experts may live.
ContractName = Literal["auto", "preview", "0731"]
ExpertsHome = Literal["auto", "device", "pinned", "mapped"]
Precision = Literal["auto", "fp32", "bf16", "int8", "int4"]

#: More than any machine has; torch starts them all, and dies of too many.
MAX_THREADS = 1024


def _setting(
    default: object,
    help_: str,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> Any:  # noqa: ANN401 - a field's default stands for its value
    return field(default=default, metadata={"help": help_, "range": (minimum, maximum)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, with its default."""

    model: str = _setting(
        DEFAULT_MODEL, "a model name, a folder, a .gguf file, or a Hugging Face hub name"
    )
    served_model_name: str | None = _setting(None, "the name clients see; default: the model's own")
    strict_model_name: bool = _setting(False, "refuse requests that name another model")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8000, "port to listen on; 0 takes a free one", minimum=0, maximum=65535)
    context_tokens: int | None = _setting(
        None, "longest prompt and answer together; default: what the model was made for", minimum=1
    )
    max_running: int = _setting(8, "sequences computed side by side", minimum=1)
    max_waiting: int = _setting(128, "requests that may queue; more are answered 429", minimum=0)
    prefill_chunk_tokens: int = _setting(512, "the most prompt tokens a step computes", minimum=1)
    prefill_target_s: float = _setting(
        0.05,
        "seconds that prompts may add to a step, and a cancel waits for; steps are measured, and "
        "their prompt tokens chosen by that; 0: always prefill_chunk_tokens",
        minimum=0,
    )
    prefix_cache: bool = _setting(
        True, "keep what was computed for prompts that begin alike, while there is memory for it"
    )
    kv_budget_bytes: int | None = _setting(
        None,
        "memory for what is remembered of prompts and answers, of running requests and of those "
        "kept; default: half of what is free once the model is loaded",
        minimum=1,
    )
    request_timeout_s: float | None = _setting(
        None, "seconds until a request is ended with an error; default: never", minimum=0
    )
    body_timeout_s: float = _setting(
        60.0, "seconds in which a request body must have arrived", minimum=0
    )
    client_stall_timeout_s: float = _setting(
        30.0,
        "seconds a client may read nothing before it is cut off",
        minimum=0,
        maximum=DAY_S,  # the kernel counts in milliseconds, in 32 bits
    )
    half_close: Literal["cancel", "respond"] = _setting(
        "cancel", "what a client means that closes its sending side: it has left, or it still reads"
    )
    max_connections: int = _setting(
        1000, "client connections at once; more are answered 503", minimum=1
    )
    drain_timeout_s: float = _setting(
        10.0, "seconds that running requests are given when the server is stopped", minimum=0
    )
    heartbeat_s: float = _setting(
        10.0, "seconds of silence in a stream before a sign of life is sent", minimum=0.01
    )
    max_body_bytes: int = _setting(32 * 1024 * 1024, "largest request body", minimum=1)
    threads: int | None = _setting(
        None, "CPU threads for the model; default: one a core", minimum=1, maximum=MAX_THREADS
    )
    dtype: Precision = _setting(
        "auto",
        "precision of the weights; auto is bf16 on a GPU, and on a CPU int4 where that loses "
        "nothing and else int8, or fp32 where no kernels can be built",
    )
    device: str = _setting("auto", "cpu, cuda, cuda:N, or auto")
    prompt_contract: ContractName = _setting(
        "auto",
        "DeepSeek V4: wording of the efforts of thinking; auto: by what ships with the model",
    )
    experts: ExpertsHome = _setting(
        "auto",
        "DeepSeek V4: routed experts on the device, in page-locked memory (which needs a GPU), or "
        "memory-mapped; auto: on the device if they fit, else memory-mapped",
    )
    experts_hot_bytes: int | None = _setting(
        None,
        "DeepSeek V4: room on the device for copies of experts that live elsewhere; "
        "default: what is free",
        minimum=0,
    )
    simulate_release_numerics: bool = _setting(
        False, "DeepSeek V4: round as the release's own kernels do; slower, for comparisons"
    )
    speculative_tokens: int = _setting(
        0,
        "DeepSeek V4: tokens guessed ahead in each step by the layer of token prediction; answers "
        "stay the same, and whether they come sooner depends on how often guesses hold",
        minimum=0,
    )
    api_keys_file: Path | None = _setting(
        None, "file with one API key a line; default: no key is needed"
    )
    metrics_keys_file: Path | None = _setting(
        None, "file with the keys that may read /metrics and /v1/engine; default: the API keys"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "names by which the server may be asked, besides addresses and localhost; default: any, "
        "but at a loopback address none",
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "web pages that may ask from elsewhere, such as https://chat.example.org; default: none"
    )
    page: bool = _setting(True, "serve the web page at /")
    responses_dir: Path | None = _setting(
        None, "folder in which /v1/responses keeps its answers; default: only in memory"
    )
    cache_dir: Path | None = _setting(
        None, "folder in which computed prompts are kept as files; default: only in memory"
    )
    cache_disk_bytes: int = _setting(
        16 * 1024**3, "what all files in cache_dir may take together", minimum=1
    )
    cache_token_ids: bool = _setting(
        False, "write token ids into those files; who has the tokenizer can read them"
    )
    log_format: Literal["text", "json"] = _setting("text", "how log lines are written")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str | Path) and "\0" in str(text):
                    raise ConfigError(f"{spec.name}: {str(text)!r} has a NUL character in it")
            if isinstance(value, int | float):
                _check_range(spec.name, value, *spec.metadata["range"])


def load_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Settings:
    """Settings from a TOML file, the environment and flags, the last one winning.

    Raises: ConfigError naming the setting and where it came from.
    """
    values = {name: value for name, (value, _) in given_settings(flags, environ, file).items()}
    return Settings(**values)  # type: ignore[arg-type]  # each value was converted to its type


def given_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> dict[str, tuple[object, str]]:
    """Of each setting that is not left to its default, the value that wins and where it came from.

    Raises: ConfigError naming the setting and where it came from.
    """
    given: dict[str, tuple[object, str]] = {}
    if file is None and (named := environ.get(FILE_VARIABLE)):
        file = Path(named)
    if file is not None:
        given |= {name: (value, str(file)) for name, value in _from_file(file).items()}
    for name, value in _from_environ(environ).items():
        given[name] = value, ENV_PREFIX + name.upper()
    for name, value in (flags or {}).items():
        given[name] = value, "--" + name.replace("_", "-")
    return given


def as_environ(settings: Settings) -> dict[str, str]:
    """The variables with which another process gets these settings; defaults are left out."""
    chosen = {spec.name: getattr(settings, spec.name) for spec in fields(settings)}
    return {
        ENV_PREFIX + spec.name.upper(): _as_text(chosen[spec.name])
        for spec in fields(settings)
        if chosen[spec.name] != spec.default
    }


def describe() -> list[tuple[str, str, object, str]]:
    """Name, type in words, default and help of each setting, for help texts and tables."""
    hints = get_type_hints(Settings)
    return [
        (f.name, _type_words(hints[f.name]), f.default, f.metadata["help"])
        for f in fields(Settings)
    ]


def convert(name: str, text: str, source: str) -> object:
    """A setting's value from text (a flag or a variable). Raises: ConfigError."""
    hint = get_type_hints(Settings)[name]
    choices = _choices(hint)
    if choices:
        if text in choices:
            return text
        raise ConfigError(f"{source}: {text!r} is not one of {', '.join(choices)}")
    kind = _plain_type(hint)
    if _is_optional(hint) and text == "":
        return None
    if kind is bool:
        word = text.lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off", ""):
            return False
        raise ConfigError(f"{source}: {text!r} is neither true nor false")
    if kind is tuple:
        return tuple(word for piece in text.split(",") if (word := piece.strip()))
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{source}: {text!r} is not {_type_words(hint)}") from None


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    names = {ENV_PREFIX + f.name.upper(): f.name for f in fields(Settings)}
    values: dict[str, object] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in (HOME_VARIABLE, FILE_VARIABLE):
            continue
        if variable not in names:
            raise ConfigError(f"{variable}: there is no such setting")
        values[names[variable]] = convert(names[variable], text, variable)
    return values


def _from_file(file: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number without end
        raise ConfigError(f"{file}: {error}") from None
    hints = get_type_hints(Settings)
    values: dict[str, object] = {}
    for key, value in document.items():
        if key not in hints:
            raise ConfigError(f"{file}: {key}: there is no such setting")
        kind = _plain_type(hints[key])
        if kind is Path and isinstance(value, str):
            values[key] = file.parent / value
        elif kind is float and type(value) in (int, float):
            try:
                values[key] = float(value)
            except OverflowError:
                raise ConfigError(f"{file}: {key}: the number is too large") from None
        elif kind is tuple and isinstance(value, list) and all(type(v) is str for v in value):
            values[key] = tuple(value)
        elif type(value) is kind and value in (_choices(hints[key]) or (value,)):
            values[key] = value
        else:
            raise ConfigError(f"{file}: {key}: {value!r} is not {_type_words(hints[key])}")
    return values


def _check_range(name: str, value: float, minimum: float, maximum: float) -> None:
    if not abs(value) < math.inf:  # or it is not a number
        raise ConfigError(f"{name}: {value} is not a finite number")
    if value < minimum:
        raise ConfigError(f"{name}: {value} is less than {minimum:g}")
    if value > maximum:
        raise ConfigError(f"{name}: {value} is more than {maximum:g}")


def _as_text(value: object) -> str:
    """What `convert` makes the same value of."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def _is_optional(hint: object) -> bool:
    return NoneType in get_args(hint)


def _choices(hint: object) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _plain_type(hint: object) -> type:
    if _choices(hint):
        return str
    if get_origin(hint) is tuple:
        return tuple
    if isinstance(hint, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    assert isinstance(hint, type)
    return hint


def _type_words(hint: object) -> str:
    if choices := _choices(hint):
        return "one of " + ", ".join(choices)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        tuple: "a list",
    }
    return words.get(_plain_type(hint), "a path")
