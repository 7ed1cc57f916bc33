"""How far predictions are apart, by hand; and what the default model loses on a CPU."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
import torch

from ds4trio.models.base import Chunk
from ds4trio.models.llama.native import NativeLlamaModel
from ds4trio.models.registry import load_model
from ds4trio.quality import TEXT_FILE, compare, main
from ds4trio.testing import ScriptedModel
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def of_two(share: float) -> Callable[[Sequence[int]], list[float]]:
    """Token 0 with this probability, else token 1."""
    others = [-100.0] * 256
    return lambda token_ids: [math.log(share), math.log(1 - share), *others]


def test_figures_by_hand() -> None:
    exact, model = ScriptedModel(logits=of_two(0.6)), ScriptedModel(logits=of_two(0.3))
    text = [0, *[0, 1] * 70]
    found = compare(exact, model, text, "int8")
    assert found.tokens == 140
    assert found.kl == pytest.approx(0.6 * math.log(2) + 0.4 * math.log(4 / 7), rel=1e-5)
    assert found.same_top == 0
    assert found.perplexity == pytest.approx((0.3 * 0.7) ** -0.5, rel=1e-5)
    same = compare(exact, exact, text)
    assert (same.kl, same.same_top) == (0, 1)


@pytest.mark.model
def test_the_default_model_keeps_its_quality(default_model: Path) -> None:
    text = TEXT_FILE.read_text(encoding="utf-8")
    ids = load_tokenizer(default_model).encode(text)[:160]
    exact = load_model(default_model, dtype="fp32", device="cpu")
    model = load_model(default_model, device="cpu")
    if not isinstance(model, NativeLlamaModel):
        pytest.skip("no kernels can be built here")
    assert {layer.down.bits for layer in model._weights.layers} == {4}
    assert model._weights.head.bits == 8
    found = compare(exact, model, ids)
    assert found.kl < 0.006
    assert found.same_top > 0.93
    # Where the likeliest token is clear, it is the same.
    expected, logits = (m.forward([Chunk(m.new_state(), ids, 160)]) for m in (exact, model))
    first, second = expected.topk(2).values.unbind(-1)
    clear = first - second > 1
    assert clear.sum() > 40
    assert torch.equal(expected.argmax(-1)[clear], logits.argmax(-1)[clear])


def test_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "absent.gguf")])
    assert str(caught.value.code).startswith("ds4trio: ")
    assert capsys.readouterr().out == ""


@pytest.mark.model
def test_json_lines(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("The cat sat on the mat.")
    main([str(default_model), "--dtype", "fp32", "--text", str(text), "--json"])
    line = json.loads(capsys.readouterr().out)
    assert (line["dtype"], line["tokens"], line["same_top"]) == ("fp32", 6, 1.0)
    assert line["kl"] == pytest.approx(0, abs=1e-6)
