"""``ds4trio inspect`` and ``serve --dry-run``: what a model is and needs, before it is loaded.

Reads settings, headers and the tokenizer, never weights. Figures are of one sequence; Units: bytes.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ds4trio.chat.load import load_chat_format
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.models.registry import model_needs
from ds4trio.store.embedded import EMBEDDED_MODELS, find_embedded
from ds4trio.store.hub import download_from_hub, hub_snapshot
from ds4trio.store.local import find_local
from ds4trio.store.resolve import default_home, resolve_model
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from ds4trio.config import Settings
    from ds4trio.models.machine import Machine
    from ds4trio.models.needs import ModelNeeds

_HUB_NAME = re.compile(r"[^/]+/[^/]+")
#: Sequences that a state is told for, beside the longest.
CONTEXTS = (8 << 10, 128 << 10, 1 << 20)


@dataclass(frozen=True, slots=True)
class TextSide:
    """``tokenizer`` None: there is none in the folder, and so no chat format is known."""

    tokenizer: str | None
    chat_format: str | None
    #: What ends the model's thoughts; None if it is not known to think.
    thinking_end: str | None
    #: Control tokens that are markup of an answer: of thoughts and of tool calls.
    markup: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """partly: it runs, with experts left in the files and read as they are used."""

    fits: Literal["yes", "partly", "no"]
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a model."""

    model: str
    path: str
    family: str
    parameters: int
    layers: int
    vocab_size: int
    context_tokens: int
    text: TextSide
    weights_bytes: int
    experts_bytes: int
    weights_from_files: bool
    #: Of one sequence of so many tokens.
    state_bytes: dict[int, int]
    #: On the average, in a sequence of ``context_tokens``.
    state_bytes_per_token: float
    machine: Machine
    verdict: Verdict

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        basis = "by the files" if self.weights_from_files else "by its settings"
        experts = (
            f", of which {gb(self.experts_bytes)} routed experts" if self.experts_bytes else ""
        )
        rows = [
            ("model", f"{self.model} ({self.path})"),
            ("family", self.family),
            ("parameters", f"{self.parameters:,}"),
            ("layers", f"{self.layers}"),
            ("vocabulary", f"{self.vocab_size:,}"),
            ("context", f"{self.context_tokens:,} tokens"),
            ("tokenizer", self.text.tokenizer or "none in this folder"),
            ("chat format", self.text.chat_format or "none"),
            ("thinking", f"ends with {end}" if (end := self.text.thinking_end) else "none"),
            ("markup", " ".join(self.text.markup) or "none"),
            ("weights", f"{gb(self.weights_bytes)} ({basis}){experts}"),
            ("a token", f"{self.state_bytes_per_token:,.0f} bytes of state"),
            *(("a sequence", f"{n:,} tokens: {gb(s)}") for n, s in self.state_bytes.items()),
            ("memory", gb(self.machine.memory_bytes)),
            ("device", _device_words(self.machine)),
            ("fits", f"{self.verdict.fits}: {self.verdict.reason}"),
        ]
        return [f"{name:<12}{value}" for name, value in rows]


def inspect_model(settings: Settings) -> Report:
    """What ``settings`` would load. Of a hub's model all is fetched but the weights; an embedded
    one is prepared as ever.

    Runs on: any thread of a program without an engine. Raises: LoadError.
    """
    path, name = _find(settings.model)
    needs, machine = model_needs(
        path,
        dtype=settings.dtype,
        device=settings.device,
        context_tokens=settings.context_tokens,
    )
    longest = needs.context_tokens
    state = {n: needs.state_bytes(n) for n in sorted({*CONTEXTS, longest}) if n <= longest}
    return Report(
        model=settings.served_model_name or name,
        path=str(path),
        family=needs.family,
        parameters=needs.parameters,
        layers=needs.layers,
        vocab_size=needs.vocab_size,
        context_tokens=longest,
        text=_text_side(path, settings),
        weights_bytes=needs.weights_bytes,
        experts_bytes=needs.experts_bytes,
        weights_from_files=needs.from_files,
        state_bytes=state,
        state_bytes_per_token=(state[longest] - needs.state_bytes(0)) / longest,
        machine=machine,
        verdict=judge(needs, machine),
    )


def judge(needs: ModelNeeds, machine: Machine) -> Verdict:
    """Whether the model fits with one sequence of its whole context."""
    state = needs.state_bytes(needs.context_tokens)
    whole = needs.weights_bytes + state
    least = whole - needs.experts_bytes
    on_gpu = machine.device_bytes is not None
    there = machine.device_bytes if machine.device_bytes is not None else machine.memory_bytes
    place = "free on the device" if on_gpu else "of memory"
    wanted = f"{gb(needs.weights_bytes)} of weights and {gb(state)} of state"
    if whole <= there:
        return Verdict("yes", f"{wanted}, and {gb(there)} {place}")
    if least <= there and needs.experts_bytes:
        missing = gb(whole - there)
        return Verdict("partly", f"{missing} of the routed experts are read as they are used")
    return Verdict("no", f"{wanted}, but {gb(there)} {place}")


def gb(count: int) -> str:
    """Bytes in words, decimal as disks are sold and memory is not."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def _find(name: str) -> tuple[Path, str]:
    """Where a model lies, and what it is called. A folder needs no more than ``config.json``."""
    folder = Path(os.path.abspath(os.path.expanduser(name)))
    if not _is_kept(name) and os.path.isfile(folder / "config.json"):
        return folder, folder.name
    if not _is_kept(name) and _HUB_NAME.fullmatch(name) and find_local(name) is None:
        return download_from_hub(name, _without_weights, force=False), name
    found = resolve_model(name)
    return found.path, found.name


def _is_kept(name: str) -> bool:
    """Whether it names a model of our own cache, or one that would be put there."""
    if find_embedded(name, EMBEDDED_MODELS):
        return True
    return name[:1] not in "./~" and os.path.isdir(default_home() / "models" / name)


def _without_weights(
    repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str], force_download: bool
) -> str:
    return hub_snapshot(
        repo_id,
        allow_patterns=allow_patterns,
        ignore_patterns=[*ignore_patterns, "*.safetensors"],
        force_download=force_download,
    )


def _text_side(path: Path, settings: Settings) -> TextSide:
    files = [f"tokenizer.{kind}" for kind in ("json", "model")]
    found = [file for file in files if (path / file).is_file()]
    if path.is_dir() and not found:
        return TextSide(None, None, None, ())
    tokenizer = load_tokenizer(path)
    chat = load_chat_format(path, tokenizer, prompt_contract=settings.prompt_contract).format
    kind = f"{found[0] if found else 'in the GGUF'}, {tokenizer.vocab_size:,} tokens"
    if chat is None:
        return TextSide(kind, None, None, ())
    markup = tuple(sorted(chat.visible_tokens & tokenizer.control_tokens.keys()))
    name = "chat template" if isinstance(chat, TemplateChatFormat) else "DeepSeek V4"
    return TextSide(kind, name, chat.thinking_end, markup)


def _device_words(machine: Machine) -> str:
    free = machine.device_bytes
    return machine.device if free is None else f"{machine.device}, {gb(free)} free"
