"""DeepSeek V4's settings, from the release's ``config.json`` or from transformers' own.

The two say the same in different words: ``compress_ratios`` or ``layer_types`` and
``compress_rates``; ``num_hash_layers`` or ``mlp_layer_types``; ``qk_rope_head_dim`` or
``partial_rotary_factor``; ``rope_scaling`` or ``rope_parameters``. A setting that is not known
here is refused by name, since it may change the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4trio.models.config_fields import ConfigFields
from ds4trio.models.layers.rope import read_rope

#: The release's ratio of compressed sparse attention, the kind that overlaps and selects.
SPARSE_RATIO = 4
#: Rows and columns of weights that share a scale in the release's FP8 format.
FP8_BLOCK = 128

_READ = frozenset(
    {
        "attention_bias",
        "compress_rates",
        "compress_ratios",
        "compress_rope_theta",
        "hc_eps",
        "hc_mult",
        "hc_sinkhorn_iters",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "layer_types",
        "max_position_embeddings",
        "mlp_bias",
        "mlp_layer_types",
        "model_type",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hash_layers",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_nextn_predict_layers",
        "o_groups",
        "o_lora_rank",
        "partial_rotary_factor",
        "q_lora_rank",
        "qk_rope_head_dim",
        "quantization_config",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "routed_scaling_factor",
        "scoring_func",
        "sliding_window",
        "swiglu_limit",
        "tie_word_embeddings",
        "topk_method",
        "vocab_size",
    }
)
#: Without effect on what is computed: training, other software, or told by the tensors' types.
_WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "expert_dtype",
        "initializer_range",
        "output_router_logits",
        "pad_token_id",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
#: Settings with one value that is implemented.
_ONLY: dict[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}


@dataclass(frozen=True, slots=True)
class Compression:
    """How a layer sees what lies before its sliding window: ``ratio`` tokens as one row.

    ``sparse``: compressed sparse attention, which pools overlapping windows and looks at the
    rows an indexer selects (paper §2.3.1). Else heavily compressed attention, which pools
    windows side by side and looks at all rows (§2.3.2).
    """

    ratio: int
    sparse: bool

    @property
    def waiting_tokens(self) -> int:
        """Of how many tokens projections are kept: an overlapping window needs its predecessor."""
        return 2 * self.ratio if self.sparse else self.ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV4Config:
    """Sizes and constants."""

    vocab_size: int
    hidden_size: int
    #: Longest sequence served: the model's own maximum, or less if so asked.
    context_tokens: int
    norm_eps: float
    #: For each layer; None looks at its sliding window only.
    compression: tuple[Compression | None, ...]
    #: For each layer, whether a table chooses the experts of each token id.
    hash_routed: tuple[bool, ...]

    heads: int
    head_dim: int
    #: Features at the end of each head that turn with the position.
    rope_dim: int
    query_rank: int
    output_groups: int
    output_rank: int
    window: int
    #: Radians a position, of layers without and with compression.
    window_frequencies: tuple[float, ...]
    compressed_frequencies: tuple[float, ...]

    index_heads: int
    index_head_dim: int
    index_top_k: int

    streams: int
    sinkhorn_iterations: int
    stream_eps: float

    experts: int
    experts_per_token: int
    expert_size: int
    routed_scale: float
    #: Bound on what enters an expert's gate.
    swiglu_limit: float
    scores: str

    #: Layers that predict the token after the next.
    mtp_layers: int

    @property
    def layers(self) -> int:
        return len(self.compression)

    @property
    def least_ring_tokens(self) -> int:
        """The fewest tokens of which something is remembered that later ones replace."""
        kinds = [kind for kind in self.compression if kind is not None]
        return min([self.window, *(kind.waiting_tokens for kind in kinds)])


def read_config(config: ConfigFields, context_tokens: int | None) -> DeepseekV4Config:
    """Settings of a model that serves sequences of ``context_tokens`` (None: its own maximum).

    Raises: LoadError naming the file and the setting.
    """
    _refuse_what_is_not_implemented(config)
    layers = config.integer("num_hidden_layers")
    head_dim = config.integer("head_dim")
    rope_dim = _rope_dim(config, head_dim)
    _check_sizes(config, rope_dim)
    window_frequencies, compressed_frequencies = _frequencies(config, rope_dim)
    return DeepseekV4Config(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        context_tokens=_context(config, context_tokens),
        norm_eps=config.number("rms_norm_eps"),
        compression=_compression(config, layers),
        hash_routed=_hash_routed(config, layers),
        heads=config.integer("num_attention_heads"),
        head_dim=head_dim,
        rope_dim=rope_dim,
        query_rank=config.integer("q_lora_rank"),
        output_groups=config.integer("o_groups"),
        output_rank=config.integer("o_lora_rank"),
        window=config.integer("sliding_window"),
        window_frequencies=window_frequencies,
        compressed_frequencies=compressed_frequencies,
        index_heads=config.integer("index_n_heads"),
        index_head_dim=config.integer("index_head_dim"),
        index_top_k=config.integer("index_topk"),
        streams=config.integer("hc_mult"),
        sinkhorn_iterations=config.integer("hc_sinkhorn_iters"),
        stream_eps=config.number("hc_eps"),
        experts=config.integer("n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        expert_size=config.integer("moe_intermediate_size"),
        routed_scale=config.number("routed_scaling_factor"),
        swiglu_limit=config.number("swiglu_limit"),
        scores=config.text("scoring_func"),
        mtp_layers=config.integer("num_nextn_predict_layers", 0, least=0),
    )


def _refuse_what_is_not_implemented(config: ConfigFields) -> None:
    unknown = {name for name in config.names - _READ - _WITHOUT_EFFECT if config.has(name)}
    if unknown:
        raise config.error(min(unknown), "is not a known setting of DeepSeek V4")
    if (act := config.text("hidden_act", "silu")) not in ("silu", "swish"):
        raise config.error("hidden_act", f"{act!r} is not supported")
    if (scores := config.text("scoring_func")) not in ("sqrtsoftplus", "sigmoid"):
        raise config.error("scoring_func", f"{scores!r} is not supported")
    for name, only in _ONLY.items():
        if not config.has(name):
            continue
        match only:
            case bool():
                found: object = config.flag(name, default=only)
            case int():
                found = config.integer(name)
            case _:
                found = config.text(name)
        if found != only:
            raise config.error(name, f"{found!r} is not supported (only {only!r})")
    if config.has("quantization_config"):
        _check_quantization(config.section("quantization_config"))


def _check_quantization(section: ConfigFields) -> None:
    """What is stored how is told by the tensors' types; here only what those cannot tell."""
    if (method := section.text("quant_method")) != "fp8":
        raise section.error("quant_method", f"{method!r} is not supported")
    if (fmt := section.text("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise section.error("fmt", f"{fmt!r} is not supported")
    if section.has("weight_block_size"):
        block = section.integers("weight_block_size")
        if block != (FP8_BLOCK, FP8_BLOCK):
            raise section.error("weight_block_size", f"{list(block)} is not supported")


def _check_sizes(config: ConfigFields, rope_dim: int) -> None:
    heads, groups = config.integer("num_attention_heads"), config.integer("o_groups")
    if heads % groups:
        raise config.error("o_groups", f"{groups} does not divide {heads} heads")
    if (index_head_dim := config.integer("index_head_dim")) < rope_dim:
        raise config.error("index_head_dim", f"{index_head_dim} is less than rotates ({rope_dim})")
    experts, chosen = config.integer("n_routed_experts"), config.integer("num_experts_per_tok")
    if chosen > experts:
        raise config.error("num_experts_per_tok", f"{chosen} of {experts} experts")


def _context(config: ConfigFields, asked: int | None) -> int:
    maximum = config.integer("max_position_embeddings")
    if asked is not None and asked > maximum:
        raise config.error(
            "max_position_embeddings", f"context_tokens {asked} is more than the model's {maximum}"
        )
    return maximum if asked is None else asked


def _rope_dim(config: ConfigFields, head_dim: int) -> int:
    name = "qk_rope_head_dim"
    if config.has(name):
        rope_dim = config.integer(name)
    else:
        name = "partial_rotary_factor"
        rope_dim = int(head_dim * config.number(name))
    if rope_dim % 2 or not 0 < rope_dim <= head_dim:
        raise config.error(name, f"{rope_dim} of {head_dim} features cannot be rotated in pairs")
    return rope_dim


def _compression(config: ConfigFields, layers: int) -> tuple[Compression | None, ...]:
    if config.has("layer_types"):
        return _compression_by_type(config, layers)
    name = "compress_ratios"
    # Entries beyond the layers describe those of token prediction.
    ratios = config.integers(name, least=0)
    if len(ratios) < layers:
        raise config.error(name, f"has {len(ratios)} entries for {layers} layers")
    kinds = []
    for place, ratio in enumerate(ratios[:layers]):
        if ratio == 1:
            raise config.error(f"{name}.{place}", "a ratio of 1 does not compress")
        kinds.append(Compression(ratio, ratio == SPARSE_RATIO) if ratio else None)
    return tuple(kinds)


def _compression_by_type(config: ConfigFields, layers: int) -> tuple[Compression | None, ...]:
    rates = config.section("compress_rates")
    known = {
        "sliding_attention": None,
        "compressed_sparse_attention": True,
        "heavily_compressed_attention": False,
    }
    kinds = config.texts("layer_types")
    if len(kinds) != layers:
        raise config.error("layer_types", f"has {len(kinds)} entries for {layers} layers")
    for kind in kinds:
        if kind not in known:
            raise config.error("layer_types", f"{kind!r} is not supported")
    return tuple(
        None if (sparse := known[kind]) is None else Compression(rates.integer(kind), sparse)
        for kind in kinds
    )


def _hash_routed(config: ConfigFields, layers: int) -> tuple[bool, ...]:
    if config.has("num_hash_layers"):
        count = config.integer("num_hash_layers", least=0)
        return tuple(index < count for index in range(layers))
    kinds = config.texts("mlp_layer_types")
    if len(kinds) != layers:
        raise config.error("mlp_layer_types", f"has {len(kinds)} entries for {layers} layers")
    for kind in kinds:
        if kind not in ("hash_moe", "moe"):
            raise config.error("mlp_layer_types", f"{kind!r} is not supported")
    return tuple(kind == "hash_moe" for kind in kinds)


def _frequencies(
    config: ConfigFields, rope_dim: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of layers without compression, which are never stretched, and of those with.

    Source: official code, ``precompute_freqs_cis``: YaRN without its factor on the values.
    """
    rope = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    if "main" in rope.names or "compress" in rope.names:
        plain, stretched = rope.section("main"), rope.section("compress")
        thetas = (plain.number("rope_theta"), stretched.number("rope_theta"))
        if (kind := plain.text("rope_type", "default")) != "default":
            raise plain.error("rope_type", f"{kind!r} is not supported")
    else:
        stretched = rope
        thetas = (config.number("rope_theta"), config.number("compress_rope_theta"))
    return (
        _read_frequencies(config, rope_dim, thetas[0], {}),
        _read_frequencies(config, rope_dim, thetas[1], _stretch(stretched)),
    )


def _read_frequencies(
    config: ConfigFields, rope_dim: int, theta: float, scaling: dict[str, object]
) -> tuple[float, ...]:
    maximum = config.integer("max_position_embeddings")
    values = {"rope_theta": theta, "rope_scaling": scaling}
    return read_rope(ConfigFields(config.path, values), rope_dim, maximum).frequencies


def _stretch(rope: ConfigFields) -> dict[str, object]:
    """Settings of the stretched rotation that have been checked to be understood."""
    kind_name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(kind_name, "default")
    if kind == "default":
        return {}
    if kind != "yarn":
        raise rope.error(kind_name, f"{kind!r} is not supported")
    if rope.number("attention_factor", 1.0) != 1.0:
        raise rope.error("attention_factor", "only 1 is supported")
    original = "original_max_position_embeddings"
    values: dict[str, object] = {"type": kind, original: rope.integer(original)}
    numbers = ("factor", "beta_fast", "beta_slow")
    return values | {name: rope.number(name) for name in numbers if rope.has(name)}
