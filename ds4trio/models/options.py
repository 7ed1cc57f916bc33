"""Settings that only some model families have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from ds4trio.config import ExpertsHome
    from ds4trio.models.config_fields import ConfigFields


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """See the settings of the same names in `ds4trio.config.Settings`."""

    experts: ExpertsHome = "auto"
    experts_hot_bytes: int | None = None
    simulate_release_numerics: bool = False

    def refuse(self, config: ConfigFields) -> None:
        """For a family that has none of them. Raises: LoadError naming one that was set."""
        for spec in fields(self):
            if getattr(self, spec.name) != spec.default:
                family = config.text("model_type")
                raise LoadError(
                    f"{config.path}: the setting {spec.name} is for DeepSeek V4, not for {family}"
                )
