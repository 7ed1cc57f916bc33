"""Settings that only some model families have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from ds4trio.config import ExpertsHome
    from ds4trio.models.config_fields import ConfigFields

#: Weights in 8 bits; in 4; or each matrix in 4 where that is how it was made, and else in 8.
Quantised = Literal["int8", "int4", "lossless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """See the settings of the same names in `ds4trio.config.Settings`.

    ``quantised`` is what ``dtype`` says of a family that can compute so on a CPU.
    """

    experts: ExpertsHome = "auto"
    experts_hot_bytes: int | None = None
    simulate_release_numerics: bool = False
    quantised: Quantised | None = None
    speculative_tokens: int = 0

    def refuse(self, config: ConfigFields) -> None:
        """For a family that is only quantised. Raises: LoadError naming one that was set."""
        for spec in fields(self):
            if spec.name != "quantised" and getattr(self, spec.name) != spec.default:
                family = config.text("model_type")
                raise LoadError(
                    f"{config.path}: the setting {spec.name} is for DeepSeek V4, not for {family}"
                )
