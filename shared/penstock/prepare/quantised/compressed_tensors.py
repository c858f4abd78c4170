"""Checkpoints of the compressed-tensors library (llm-compressor writes them).

Source of the keys: that library's QuantizationConfig, QuantizationScheme and QuantizationArgs. What
they say of activations changes nothing but for FP8, whose kernels may take them in FP8 too. What
they say of the KV cache changes nothing: its type is a setting of the server, and its scales are
tensors.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, Storage, WeightScheme
from penstock.prepare.quantised.methods import block_of
from penstock.prepare.quantised.settings import check_known, group_size, modules, one_of

_KNOWN = {
    "config_groups",
    "format",
    "global_compression_ratio",
    "ignore",
    "kv_cache_scheme",
    "moe_sparsity_config",
    "provider",
    "quant_method",
    "quantization_status",
    "sparsity_config",
    "transform_config",
    "version",
}
_GROUP = {"format", "input_activations", "output_activations", "targets", "weights"}
_WEIGHTS = {
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
}
_MOST_GROUPS = 256

_BITS = range(2, 9)
_BYTES: dict[tuple[str, int], Storage] = {("int", bits): "int8" for bits in _BITS}

_STORED: dict[str, dict[tuple[str, int], Storage]] = {
    "pack-quantized": {("int", bits): "packed" for bits in _BITS},
    "int-quantized": _BYTES,
    "float-quantized": {("float", 8): "fp8"},
    "naive-quantized": {**_BYTES, ("float", 8): "fp8"},
    "mxfp4-pack-quantized": {("float", 4): "mxfp4"},
    "mxfp8-quantized": {("float", 8): "fp8"},
    "nvfp4-pack-quantized": {("float", 4): "nvfp4"},
}
"""How weights are stored, by format, and by type and number of bits of the weights. With
"mixed-precision", each group has its own format."""


def read_compressed_tensors(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for sparse and transformed weights, and for other formats than those
    of _STORED."""
    check_known(settings, _KNOWN)
    _refuse_sparse(settings.section("sparsity_config"))
    if settings.section("transform_config").values:
        raise UnsupportedModel(
            f"{settings.where}: transform_config is not served: activations would have to be "
            "rotated"
        )
    status = settings.text("quantization_status", "compressed")
    one_of(settings, "quantization_status", status, ("compressed", "frozen"))
    groups = settings.section("config_groups")
    if not 1 <= len(groups.values) <= _MOST_GROUPS:
        raise groups.wrong("config_groups", f"an object of 1 to {_MOST_GROUPS} groups")
    form = settings.text("format")
    schemes = {_scheme(groups.section(name), form): None for name in groups.values}
    return QuantisedCheckpoint(
        method="compressed-tensors",
        # A byte may hold few bits: where nothing else tells two schemes apart, the one with more
        # bits reads the matrices of both.
        schemes=tuple(sorted(schemes, key=lambda scheme: -scheme.bits)),
        unquantised=modules(settings, "ignore"),
    )


def _refuse_sparse(settings: Fields) -> None:
    form = settings.text("format", "dense")
    one_of(settings, "format", form, ("dense",))


def _scheme(group: Fields, common_format: str) -> WeightScheme:
    check_known(group, _GROUP)
    # A group with a class of modules that isn't Linear would quantise embeddings, which are stored
    # alike; which modules a group names is seen from their tensors.
    group.listed("targets", str)
    weights = group.section("weights")
    if not weights.values:
        raise UnsupportedModel(f"{group.where}: weights is missing")
    check_known(weights, _WEIGHTS)
    one_of(weights, "dynamic", weights.flag("dynamic", False), (False,))
    form = group.text("format", common_format)
    one_of(group, "format", form, tuple(_STORED))
    bits = weights.integer("num_bits", 8)
    kind = weights.text("type", "int")
    one_of(weights, "type and num_bits", (kind, bits), tuple(_STORED[form]))
    strategy = _strategy(weights)
    storage = _STORED[form][kind, bits]
    size = group_size(weights, "group_size") if strategy == "group" else None
    block = block_of(weights, "block_structure") if strategy == "block" else None
    if storage == "fp8" and size is not None:
        block, size = (1, size), None
    return WeightScheme(
        storage=storage,
        bits=bits,
        group_size=size,
        symmetric=weights.flag("symmetric", True),
        act_order=_act_order(weights),
        block=block,
        float8_inputs=group.section("input_activations").text("type", "none") == "float",
    )


def _strategy(weights: Fields) -> str:
    """Returns what shares a scale. Where it isn't said, the group's size says it."""
    size = weights.optional_integer("group_size")
    inferred = "tensor" if size is None else "group" if size > 0 else "channel"
    strategy = weights.text("strategy", inferred)
    one_of(weights, "strategy", strategy, ("tensor", "channel", "group", "block", "tensor_group"))
    if strategy == "tensor_group":  # Groups, whose scales have a common factor.
        return "group"
    if strategy == "block" and "block_structure" not in weights:
        raise UnsupportedModel(f"{weights.where}: block_structure is missing")
    return strategy


def _act_order(weights: Fields) -> bool:
    """Returns whether the inputs of a group are spread. With `weight` (alias `static`) they were
    quantised in another order, but stored as they lie."""
    order = weights.values.get("actorder")
    if order in (None, False):
        return False
    one_of(weights, "actorder", order, ("group", "dynamic", "weight", "static", True))
    return order in ("group", "dynamic", True)
