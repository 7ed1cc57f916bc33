"""What a precision costs: a model's predictions of a fixed text beside those in float32.

    python -m ds4trio.quality [MODEL] [--dtype int8 --dtype int4 ...] [--text FILE] [--json]

Every token is predicted from the true ones before it. A program of its own: it starts no server,
and its only thread uses torch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ds4trio.config import DEFAULT_MODEL, Precision
from ds4trio.errors import Ds4TrioError
from ds4trio.store.resolve import resolve_model
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import CausalLM

#: English prose, instructions, code, JSON, dialogue; written for this.
TEXT_FILE = Path(__file__).with_name("quality_text.txt")
_CHUNK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Quality:
    """Of ``tokens`` predictions.

    ``kl`` is the mean of the Kullback-Leibler divergence from float32's distribution to this one,
    in nats; ``same_top`` the share whose likeliest token is float32's; ``perplexity`` is of the
    text.
    """

    dtype: str
    tokens: int
    kl: float
    same_top: float
    perplexity: float


def compare(exact: CausalLM, model: CausalLM, token_ids: Sequence[int], dtype: str = "") -> Quality:
    """The quality of ``model`` on a text. Raises: ValueError if it is longer than its context."""
    import torch

    from ds4trio.models.base import Chunk

    states = exact.new_state(), model.new_state()
    kl = same = surprise = 0.0
    inputs, targets = token_ids[:-1], torch.tensor(token_ids[1:])
    for start in range(0, len(inputs), _CHUNK_TOKENS):
        chunk = inputs[start : start + _CHUNK_TOKENS]
        expected, found = (
            one.forward([Chunk(state, chunk, len(chunk))]).log_softmax(-1).cpu()
            for one, state in zip((exact, model), states, strict=True)
        )
        kl += float((expected.exp() * (expected - found)).sum(dtype=torch.float64))
        same += int((expected.argmax(-1) == found.argmax(-1)).sum())
        surprise -= float(found.gather(1, targets[start : start + len(chunk), None]).sum())
    count = len(inputs)
    return Quality(dtype, count, kl / count, same / count, math.exp(surprise / count))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each precision."""
    parser = argparse.ArgumentParser(prog="python -m ds4trio.quality", description=__doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", action="append", choices=get_args(Precision))
    parser.add_argument("--text", type=Path, default=TEXT_FILE, help="default: one that ships")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    # As the command line does, and before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from ds4trio.models.registry import load_model

    try:
        path = resolve_model(options.model).path
        token_ids = load_tokenizer(path).encode(options.text.read_text(encoding="utf-8"))
        exact = load_model(path, dtype="fp32")
        if not options.json:
            print(f"{len(token_ids) - 1} tokens      KL  same top  perplexity")
        for dtype in options.dtype or get_args(Precision):
            found = compare(exact, load_model(path, dtype=dtype), token_ids, dtype)
            if options.json:
                print(json.dumps(asdict(found)), flush=True)
            else:
                numbers = f"{found.kl:12.5f} {found.same_top:9.1%} {found.perplexity:11.3f}"
                print(f"{dtype:6}{numbers}", flush=True)
    except (Ds4TrioError, OSError) as error:
        sys.exit(f"ds4trio: {error}")


if __name__ == "__main__":
    main()
