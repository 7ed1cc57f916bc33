"""How much a DeepSeek V4 needs: from its files' headers, or without files as a release's."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ds4trio.errors import LoadError
from ds4trio.models.deepseek_v4.config import DeepseekV4Config, read_config
from ds4trio.models.deepseek_v4.footprint import state_bytes, weights_footprint
from ds4trio.models.deepseek_v4.layout import layer_tensors, mtp_tensors, top_tensors
from ds4trio.models.deepseek_v4.naming import holds_mtp, spelling
from ds4trio.models.needs import ModelNeeds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ds4trio.models.config_fields import ConfigFields
    from ds4trio.models.deepseek_v4.layout import Stored
    from ds4trio.models.weights import TensorSource

#: By safetensors' names of types.
_NUMBER_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2,
    "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1,
}  # fmt: skip


def needs(
    config: ConfigFields,
    tensors: TensorSource | None,
    context_tokens: int | None,
    number_bytes: int,
) -> ModelNeeds:
    """``number_bytes``: of an activation; weights stay as they are stored. Raises: LoadError."""
    settings = read_config(config, context_tokens)
    footprint = weights_footprint(settings)
    has_mtp = settings.mtp_layers == 1 and (tensors is None or holds_mtp(tensors.names))
    total = footprint.total if has_mtp else footprint.shared + footprint.experts
    stored_bytes, experts_bytes = total.nbytes, footprint.experts.nbytes
    if tensors is not None:
        sizes = {name: _nbytes(tensors, name) for name in tensors.names}
        stored_bytes = sum(
            size for name, size in sizes.items() if has_mtp or not name.startswith("mtp.")
        )
        experts_bytes = sum(
            size for name, size in sizes.items() if ".experts." in name and "mtp." not in name
        )
    return ModelNeeds(
        family=config.text("model_type"),
        # As published: without the layer of token prediction.
        parameters=(footprint.shared + footprint.experts).parameters,
        layers=settings.layers,
        vocab_size=settings.vocab_size,
        context_tokens=settings.context_tokens,
        weights_bytes=stored_bytes + _expansion_bytes(settings, tensors, has_mtp=has_mtp),
        experts_bytes=experts_bytes,
        from_files=tensors is not None,
        state_bytes=partial(state_bytes, settings, number_bytes=number_bytes),
    )


def _expansion_bytes(
    config: DeepseekV4Config, tensors: TensorSource | None, *, has_mtp: bool
) -> int:
    """What is added where small tensors are kept in float32 and not as they are stored."""
    spelt = spelling(() if tensors is None else tensors.names)
    named: dict[str, Stored] = {
        spelt.of_top(name): stored for name, stored in _vectors(top_tensors(config))
    }
    kinds = zip(config.compression, config.hash_routed, strict=True)
    for index, (compression, hashed) in enumerate(kinds):
        for name, stored in _vectors(layer_tensors(config, compression, hashed)):
            named[spelt.of_layer(index, name)] = stored
    if has_mtp:
        named |= {f"mtp.0.{name}": stored for name, stored in _vectors(mtp_tensors(config))}
    return sum(
        4 * stored.parameters - (_nbytes(tensors, name) if tensors else stored.nbytes)
        for name, stored in named.items()
    )


def _vectors(tensors: Mapping[str, Stored]) -> Iterator[tuple[str, Stored]]:
    """Those that ``load`` keeps in float32."""
    for name, stored in tensors.items():
        if stored.form == "f32" or name.endswith(("norm.weight", "ffn.gate.weight")):
            yield name, stored


def _nbytes(tensors: TensorSource, name: str) -> int:
    if name not in tensors.names:
        raise LoadError(f"{tensors.path}: {name}: missing")
    kind = tensors.kind(name)
    if kind not in _NUMBER_BYTES:
        raise LoadError(f"{tensors.where(name)}: has type {kind}, which is not supported")
    return math.prod(tensors.shape(name)) * _NUMBER_BYTES[kind]
