"""From a checkpoint to a model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ds4trio.errors import LoadError
from ds4trio.models.deepseek_v4.attention import Attention, round_keys
from ds4trio.models.deepseek_v4.block import Block
from ds4trio.models.deepseek_v4.compressor import Compressor
from ds4trio.models.deepseek_v4.config import Compression, DeepseekV4Config, read_config
from ds4trio.models.deepseek_v4.hyper_connection import HyperConnection, StreamsHead
from ds4trio.models.deepseek_v4.indexer import Indexer
from ds4trio.models.deepseek_v4.layout import layer_tensors, mtp_tensors, top_tensors
from ds4trio.models.deepseek_v4.matrix import fp4_round_trip, hadamard
from ds4trio.models.deepseek_v4.model import DeepseekV4Model, ModelWeights
from ds4trio.models.deepseek_v4.moe import Expert, MixtureOfExperts, Router
from ds4trio.models.deepseek_v4.mtp import MtpLayer
from ds4trio.models.deepseek_v4.naming import holds_mtp, spelling
from ds4trio.models.deepseek_v4.placement import Placement, chosen, place
from ds4trio.models.deepseek_v4.weights import Group, read_experts
from ds4trio.models.options import ModelOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.models.config_fields import ConfigFields
    from ds4trio.models.deepseek_v4.layout import Stored
    from ds4trio.models.weights import Weights

#: Features that share a scale where the indexer rounds to FP4.
_INDEX_BLOCK = 32


@torch.inference_mode()
def load(
    config: ConfigFields,
    weights: Weights,
    context_tokens: int | None,
    options: ModelOptions | None = None,
) -> DeepseekV4Model:
    """Runs on: worker. Raises: LoadError naming the file and the tensor or setting."""
    settings = read_config(config, context_tokens)
    options = options or ModelOptions()
    if options.speculative_tokens:
        _check_speculation(config, settings, weights, options.speculative_tokens)
    return _Loader(settings, weights, options).model()


def _check_speculation(
    config: ConfigFields, settings: DeepseekV4Config, weights: Weights, tokens: int
) -> None:
    """That such drafts can be made, and taken back."""
    if not _has_mtp(settings, weights):
        raise LoadError(
            f"{config.path}: the setting speculative_tokens needs a layer of token prediction, "
            "and this model has none"
        )
    # A draft is computed with the token before it, and never replaces more than a ring has.
    most = settings.least_ring_tokens - 1
    if tokens > most:
        raise LoadError(
            f"{config.path}: the setting speculative_tokens: this model can take back {most}"
        )


def _has_mtp(config: DeepseekV4Config, weights: Weights) -> bool:
    return config.mtp_layers == 1 and holds_mtp(weights.names)


class _Loader:
    def __init__(
        self,
        config: DeepseekV4Config,
        weights: Weights,
        options: ModelOptions,
    ) -> None:
        self._config = config
        self._weights = weights
        self._options = options
        self._simulate = options.simulate_release_numerics
        self._spelling = spelling(weights.names)
        self._compressed_frequencies = torch.tensor(
            config.compressed_frequencies, dtype=torch.float32, device=weights.device
        )

    def model(self) -> DeepseekV4Model:
        config = self._config
        top = self._group(top_tensors(config), self._spelling.of_top)
        embedding, head = top.table("embed.weight"), top.table("head.weight")
        norm, streams_head = top.vector("norm.weight"), self._streams_head(top)
        blocks = [self._layer(index) for index in range(config.layers)]
        mtp = self._mtp()
        self._weights.finish()
        blocks = [*blocks, mtp.block] if mtp else blocks
        placement = self._placement(blocks)
        blocks = _placed(blocks, placement, self._weights.device)
        if mtp:
            mtp = replace(mtp, block=blocks.pop())
        return DeepseekV4Model(
            config,
            ModelWeights(embedding, tuple(blocks), streams_head, norm, head, mtp),
            dtype=self._weights.dtype,
            device=self._weights.device,
            speculative_tokens=self._options.speculative_tokens,
            claimed_bytes=placement.hot_bytes,
        )

    def _placement(self, blocks: Sequence[Block]) -> Placement:
        """Where experts shall live, when all else has its place."""
        experts = [expert for block in blocks for expert in block.experts.experts]
        experts_bytes = sum(expert.nbytes for expert in experts)
        return chosen(self._options, experts_bytes, self._weights.device)

    def _layer(self, index: int) -> Block:
        compression = self._config.compression[index]
        name = partial(self._spelling.of_layer, index)
        group = self._group(
            layer_tensors(self._config, compression, self._config.hash_routed[index]), name
        )
        experts = read_experts(
            self._config, self._weights, name, self._simulate, self._spelling.stacked
        )
        return self._block(group, experts, compression)

    def _mtp(self) -> MtpLayer | None:
        """The layer of token prediction; what else a release ships in its place is set aside."""
        prefix = "mtp.0."
        names = {name for name in self._weights.names if name.startswith("mtp.")}
        if not _has_mtp(self._config, self._weights):
            self._weights.set_aside(names)
            return None
        group = self._group(mtp_tensors(self._config), lambda name: prefix + name)
        experts = read_experts(
            self._config, self._weights, lambda name: prefix + name, self._simulate, stacked=False
        )
        return MtpLayer(
            embedding_norm=group.vector("enorm.weight"),
            streams_norm=group.vector("hnorm.weight"),
            embedding_projection=group.linear("e_proj.weight"),
            streams_projection=group.linear("h_proj.weight"),
            block=self._block(group, experts, None),
            streams_head=self._streams_head(group),
            norm=group.vector("norm.weight"),
            norm_eps=self._config.norm_eps,
        )

    def _block(
        self, group: Group, experts: Sequence[Expert], compression: Compression | None
    ) -> Block:
        return Block(
            attention=self._attention(group, compression),
            experts=MixtureOfExperts(self._router(group), experts, self._shared(group)),
            attention_norm=group.vector("attn_norm.weight"),
            experts_norm=group.vector("ffn_norm.weight"),
            attention_streams=self._streams(group, "hc_attn_"),
            experts_streams=self._streams(group, "hc_ffn_"),
            norm_eps=self._config.norm_eps,
        )

    def _attention(self, group: Group, compression: Compression | None) -> Attention:
        compressor = indexer = None
        if compression is not None:
            rounded = partial(round_keys, rope_dim=self._config.rope_dim)
            compressor = self._compressor(group, "attn.compressor.", compression, rounded)
        if compression is not None and compression.sparse:
            indexer = Indexer(
                config=self._config,
                compressor=self._compressor(
                    group, "attn.indexer.compressor.", compression, _round_index
                ),
                query=group.linear("attn.indexer.wq_b.weight"),
                weights=group.linear("attn.indexer.weights_proj.weight"),
                finish=_round_index if self._simulate else None,
            )
        return Attention(
            config=self._config,
            query_down=group.linear("attn.wq_a.weight"),
            query_norm=group.vector("attn.q_norm.weight"),
            query_up=group.linear("attn.wq_b.weight"),
            key=group.linear("attn.wkv.weight"),
            key_norm=group.vector("attn.kv_norm.weight"),
            sinks=group.vector("attn.attn_sink"),
            output_down=group.matrix("attn.wo_a.weight"),
            output_up=group.linear("attn.wo_b.weight"),
            compressor=compressor,
            indexer=indexer,
            simulate=self._simulate,
        )

    def _compressor(
        self,
        group: Group,
        prefix: str,
        compression: Compression,
        finish: Callable[[torch.Tensor], torch.Tensor],
    ) -> Compressor:
        return Compressor(
            compression=compression,
            kv=group.linear(f"{prefix}wkv.weight"),
            gate=group.linear(f"{prefix}wgate.weight"),
            place_bias=group.vector(f"{prefix}ape"),
            norm=group.vector(f"{prefix}norm.weight"),
            norm_eps=self._config.norm_eps,
            frequencies=self._compressed_frequencies,
            finish=finish if self._simulate else None,
        )

    def _router(self, group: Group) -> Router:
        return Router(
            config=self._config,
            weight=group.vector("ffn.gate.weight"),
            bias=group.vector("ffn.gate.bias") if group.has("ffn.gate.bias") else None,
            table=(
                group.expert_table("ffn.gate.tid2eid") if group.has("ffn.gate.tid2eid") else None
            ),
        )

    def _shared(self, group: Group) -> Expert:
        gate, down, up = (group.linear(f"ffn.shared_experts.w{n}.weight") for n in (1, 2, 3))
        return Expert(gate, up, down, self._config.swiglu_limit)

    def _streams(self, group: Group, prefix: str) -> HyperConnection:
        projection, base, scale = (group.vector(prefix + part) for part in ("fn", "base", "scale"))
        return HyperConnection(self._config, projection, base, scale)

    def _streams_head(self, group: Group) -> StreamsHead:
        parts = (group.vector(f"hc_head_{part}") for part in ("fn", "base", "scale"))
        return StreamsHead(self._config, *parts)

    def _group(self, tensors: dict[str, Stored], name: Callable[[str], str]) -> Group:
        return Group(self._weights, tensors, name, self._simulate)


def _placed(blocks: Sequence[Block], placement: Placement, device: torch.device) -> list[Block]:
    """Blocks with their experts put where they shall live."""
    homes = [block.experts.experts for block in blocks]
    return [
        replace(block, experts=replace(block.experts, experts=experts))
        for block, experts in zip(blocks, place(homes, placement, device), strict=True)
    ]


def _round_index(x: torch.Tensor) -> torch.Tensor:
    """The indexer's queries and keys as the release keeps them."""
    return fp4_round_trip(hadamard(x), _INDEX_BLOCK)
