"""Speculation on tiny models: what is drafted, what is taken back, and that answers stay the same.

There are no released weights here: how often real drafts hold is not known from this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import DeepseekV4Config as TheirConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
    DeepseekV4RotaryEmbedding,
)
from v4_checkpoints import (
    RELEASE,
    VOCABULARY,
    Release,
    make_checkpoint,
    oracle,
    prompt,
    variants,
    write_release,
)

from ds4trio.engine.job import EngineRequest, TokenEvent
from ds4trio.engine.messages import Job, Signal, StepReport
from ds4trio.engine.worker import Limits, Worker
from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.deepseek_v4.load import load
from ds4trio.models.options import ModelOptions
from ds4trio.models.weights import SafetensorsFolder, Weights
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ds4trio.engine.messages import FromWorker, ToWorker
    from ds4trio.models.base import DraftState
    from ds4trio.models.deepseek_v4.model import DeepseekV4Model
    from ds4trio.models.deepseek_v4.state import DeepseekV4State

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("release")
    write_release(path, Release().tensors)
    return path


def loaded(folder: Path, speculative_tokens: int = 0) -> DeepseekV4Model:
    path = folder / "config.json"
    weights = Weights(SafetensorsFolder(folder), dtype=torch.float32, device=CPU)
    config = ConfigFields(path, read_json_object(path))
    return load(config, weights, None, ModelOptions(speculative_tokens=speculative_tokens))


# -- what is drafted -----------------------------------------------------------------------------


def test_drafts_equal_the_same_layers_of_transformers(folder: Path) -> None:
    """The oracle has no such layer, but has all that it is made of. From a sequence
    longer than the layer's window, told in pieces of any size; of three tokens ahead, two.
    """
    model = loaded(folder, speculative_tokens=3)
    assert model.drafter is not None
    tensors = Release().tensors
    their_layer = oracle_layer(folder, tensors)
    shown = prompt(31, seed=8)
    streams = model.advance([Chunk(model.new_state(), shown[:30], 0)])

    def norm(name: str) -> DeepseekV4RMSNorm:
        made = DeepseekV4RMSNorm(128, eps=1e-6)
        made.weight.data = tensors[f"mtp.0.{name}.weight"].float()
        return made

    def plain(name: str) -> torch.Tensor:
        codes, scale = (tensors[f"mtp.0.{name}.{part}"].float() for part in ("weight", "scale"))
        return codes * scale  # one block

    head = DeepseekV4HyperHead(TheirConfig.from_dict({**RELEASE}))
    for part in ("fn", "base", "scale"):
        getattr(head, f"hc_{part}").data = tensors[f"mtp.0.hc_head_{part}"]

    def entering(streams: torch.Tensor, next_ids: list[int]) -> torch.Tensor:
        e = norm("enorm")(tensors["embed.weight"][next_ids].float()) @ plain("e_proj").T
        x: torch.Tensor = norm("hnorm")(streams) @ plain("h_proj").T + e.unsqueeze(1)
        return x

    def expected(count: int, chosen: int) -> list[torch.Tensor]:
        """Logits of the two guesses that follow the first ``count`` tokens and their successor."""
        x = entering(streams[:count], shown[1 : count + 1])
        first = their_layer(x)[-1:]
        second = their_layer(torch.cat((x, entering(first, [chosen]))))[-1:]
        hidden = torch.cat([norm("norm")(head(out[None]))[0] for out in (first, second)])
        logits: torch.Tensor = hidden @ tensors["head.weight"].float().T
        return list(logits)

    asked: list[torch.Tensor] = []

    def choose(logits: torch.Tensor) -> list[int]:
        asked.append(logits)
        return [7] * len(logits)

    one, other = model.drafter.new_state(), model.drafter.new_state()
    with torch.no_grad():
        one.observe(streams[:5], shown[1:6])
        model.drafter.draft([one], choose)
        for start, stop in ((5, 9), (9, 29)):  # of which a part has left the window at once
            one.observe(streams[start:stop], shown[start + 1 : stop + 1])
        model.drafter.draft([one], choose)
        one.observe(streams[29:30], shown[30:])
        other.observe(streams[:12], shown[1:13])
        assert model.drafter.draft([one, other], choose) == [[7, 7, 7], [7, 7, 7]]
        first, second, last = asked[:3], asked[3:6], asked[6:]
        for count, found in (
            (5, [logits[0] for logits in first]),
            (29, [logits[0] for logits in second]),
            (30, [logits[0] for logits in last]),
            (12, [logits[1] for logits in last]),
        ):
            for ahead, logits in enumerate(expected(count, 7)):
                torch.testing.assert_close(found[ahead], logits, atol=1e-4, rtol=0)


def oracle_layer(
    folder: Path, tensors: dict[str, torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer of token prediction in transformers, as the one layer of a model."""
    renamed = {
        name.replace("mtp.0.", "layers.0."): tensor
        for name, tensor in tensors.items()
        if name.startswith(("mtp.0.attn", "mtp.0.ffn", "mtp.0.hc_attn", "mtp.0.hc_ffn"))
    }
    top = ("embed.weight", "head.weight", "norm.weight")
    renamed |= {name: tensors[name] for name in top}
    renamed |= {f"hc_head_{p}": tensors[f"hc_head_{p}"] for p in ("fn", "base", "scale")}
    place = folder.parent / "one-layer"
    write_release(place, renamed, num_hidden_layers=1, compress_ratios=[0], num_hash_layers=0)
    theirs = oracle(place).model
    layer = theirs.layers[0]
    assert isinstance(layer, DeepseekV4DecoderLayer)
    assert isinstance(theirs.rotary_emb, DeepseekV4RotaryEmbedding)

    def run(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(len(x))[None]
        by = {
            kind: theirs.rotary_emb(x[None], position_ids=positions, layer_type=kind)
            for kind in ("main", "compress")
        }
        back = positions[0][:, None] - positions[0]
        window = RELEASE["sliding_window"]
        assert isinstance(window, int)
        mask = torch.zeros((len(x), len(x))).masked_fill((back < 0) | (back >= window), -torch.inf)
        out: torch.Tensor = layer(
            x[None], position_embeddings=by, position_ids=positions, attention_mask=mask[None, None]
        )
        return out[0]

    return run


def test_a_model_that_cannot_draft_or_take_back_is_refused(folder: Path, tmp_path: Path) -> None:
    loaded(folder, speculative_tokens=7)  # of compressed sparse attention two windows of 4 wait
    with pytest.raises(LoadError, match=r"config\.json: .*speculative_tokens.* take back 7"):
        loaded(folder, speculative_tokens=8)
    kept = {name: t for name, t in Release().tensors.items() if not name.startswith("mtp.")}
    write_release(tmp_path, kept)
    assert loaded(tmp_path).drafter is None
    with pytest.raises(LoadError, match=r"config\.json: .*speculative_tokens.* none"):
        loaded(tmp_path, speculative_tokens=1)


# -- what is taken back --------------------------------------------------------------------------


def assert_same(
    found: DeepseekV4State, expected: DeepseekV4State, tolerance: float | None = None
) -> None:
    """To the bit, without a tolerance."""
    theirs = expected.save(0)
    assert found.length == expected.length
    assert found.save(0).keys() == theirs.keys()
    for name, tensor in found.save(0).items():
        if tolerance is None:
            assert torch.equal(tensor, theirs[name]), name
        else:
            torch.testing.assert_close(tensor, theirs[name], atol=tolerance, rtol=0)


KINDS = ["sliding", "sparse", "sparse-by-2", "heavy", "mixed", "three-streams"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_back_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    """At every length of several windows: all of a trial, or all but some."""
    make_checkpoint(variants()[kind], tmp_path)
    model = loaded(tmp_path)
    tokens, wrong = prompt(60), prompt(60, seed=1)
    most = model.config.least_ring_tokens
    tried, plain = model.new_state(), model.new_state()
    tried.hold(most)
    tried.settle(0)
    for length, token_id in enumerate(tokens[:50]):
        count = 1 + length % most
        tried.hold(count)
        model.forward([Chunk(tried, wrong[:count])])
        tried.settle(length)
        if length % 5 == 0:
            assert_same(tried, plain)  # neither saw what the other did not
        found = model.forward([Chunk(tried, [token_id])])
        torch.testing.assert_close(found, model.forward([Chunk(plain, [token_id])]))
    kept = 0
    while plain.length + most < len(tokens):
        right = tokens[plain.length : plain.length + kept]
        tried.hold(most)
        model.forward([Chunk(tried, [*right, *wrong[: most - kept]])])
        tried.settle(plain.length + kept)
        for token_id in right:
            model.forward([Chunk(plain, [token_id])])
        assert_same(tried, plain, tolerance=1e-4)
        kept = (kept + 1) % (most + 1)
    with pytest.raises(ValueError, match="could not be taken back"):
        tried.hold(most + 1)


# -- answers -------------------------------------------------------------------------------------


class KnowingDrafter:
    """Knows what comes, and says something else where it is told to."""

    def __init__(self, answer: Sequence[int], tokens: int, lies: Callable[[int], bool]) -> None:
        self.tokens = tokens
        self._answer = [*answer, *[0] * tokens]
        self._lies = lies

    def new_state(self) -> Counting:
        return Counting()

    def draft(
        self, states: Sequence[DraftState], choose: Callable[[torch.Tensor], Sequence[int]]
    ) -> list[list[int]]:
        drafts = []
        for state in states:
            assert isinstance(state, Counting)
            start = state.tokens
            drafts.append(
                [
                    (token_id + self._lies(place)) % VOCABULARY
                    for place, token_id in enumerate(
                        self._answer[start : start + self.tokens], start
                    )
                ]
            )
        return drafts


class Counting:
    """How many tokens of the answer there are."""

    def __init__(self) -> None:
        self.tokens = 1 - LENGTH

    def observe(self, features: torch.Tensor, next_ids: Sequence[int]) -> None:
        assert len(features) == len(next_ids)
        self.tokens += len(next_ids)


LENGTH = 70
ANSWER = 60


def answered(
    model: DeepseekV4Model, sampling: SamplingParams
) -> tuple[list[int], DeepseekV4State, StepReport]:
    """An answer to a prompt of several windows, beside a neighbour; its state, and all counts."""
    jobs = [
        Job(EngineRequest(tuple(prompt(LENGTH, seed)), sampling), count, submitted_at=0.0)
        for seed, count in ((3, ANSWER), (4, 1))
    ]
    waits: list[list[ToWorker]] = [[*jobs], [Signal.STOP]]
    states: list[DeepseekV4State] = []
    new_state = model.new_state

    def watched() -> DeepseekV4State:
        states.append(new_state())
        return states[-1]

    class Source:
        def take_ready(self) -> list[ToWorker]:
            return []

        def wait(self) -> list[ToWorker]:
            return waits.pop(0)

    counts = StepReport()
    found: list[int] = []

    def publish(report: FromWorker) -> None:
        if isinstance(report, StepReport):
            counts.forwards += report.forwards
            counts.drafted_tokens += report.drafted_tokens
            counts.accepted_tokens += report.accepted_tokens
            items = report.deliveries.get(jobs[0], [])
            found.extend(item.token_id for item in items if isinstance(item, TokenEvent))

    limits = Limits(2, 9, 10**9, kv_budget_bytes=10**9, prefix_cache=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "new_state", watched)
        Worker(lambda: model, Source(), publish, limits, threads=1).run()
    return found, states[0], counts


@pytest.mark.parametrize("kind", ["sparse-by-2", "heavy", "mixed"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_and_states_are_those_without_it(
    kind: str, temperature: float, tmp_path: Path
) -> None:
    make_checkpoint(variants()[kind], tmp_path)
    model = loaded(tmp_path)
    sampling = SamplingParams(temperature=temperature, seed=5)
    expected, plain, without = answered(model, sampling)
    assert len(expected) == ANSWER
    assert without.drafted_tokens == 0
    lies: Callable[[int], bool]
    for tokens, lies in ((1, lambda place: place % 3 == 0), (3, lambda place: place % 5 == 0)):
        drafter = KnowingDrafter(expected, tokens, lies)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "drafter", drafter)
            found, state, counts = answered(model, sampling)
        assert found == expected
        assert_same(state, plain, tolerance=1e-4)
        assert 0 < counts.accepted_tokens < counts.drafted_tokens
        assert counts.forwards == without.forwards - counts.accepted_tokens


def test_the_release_with_its_own_drafts(folder: Path) -> None:
    """Chance lets a few of such random drafts hold."""
    sampling = SamplingParams(temperature=0.0)
    expected, plain, _ = answered(loaded(folder), sampling)
    for tokens in (1, 3):
        found, state, counts = answered(loaded(folder, tokens), sampling)
        assert found == expected
        assert_same(state, plain, tolerance=1e-4)
        assert counts.drafted_tokens > ANSWER // 2
