"""Checkpoints of NVIDIA's Model Optimizer.

Source of the keys: what that library's export writes, as quantization_config in config.json, and in
hf_quant_config.json, the only place in older releases. What they say of activations changes nothing
but for FP8, whose kernels may take them in FP8 too; the KV cache's type is a setting of the server,
and its scales are tensors.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import MAX_LISTED, check_known, modules

MIXED = "MIXED_PRECISION"
_FP8 = WeightScheme(storage="fp8", bits=8, float8_inputs=True)
_NVFP4 = WeightScheme(storage="nvfp4", bits=4, group_size=16)
_INT8 = WeightScheme(storage="int8", bits=8)
_INT4 = WeightScheme(storage="int4", bits=4, group_size=128)
_MXFP4 = WeightScheme(storage="mxfp4", bits=4, group_size=32)
SCHEMES: dict[str, WeightScheme] = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "FP8_PB_WO": WeightScheme(storage="fp8", bits=8, block=(128, 128)),
    "MXFP8": WeightScheme(storage="fp8", bits=8, block=(1, 32)),
    "NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
    "W4A8_NVFP4_FP8": _NVFP4,
    "MXFP4": _MXFP4,
    "W4A8_MXFP4_FP8": _MXFP4,
    "W4A16_AWQ": _INT4,
    "W4A8_AWQ": _INT4,
    "W8A16": _INT8,
    "W8A8_SQ_PER_CHANNEL": _INT8,
}
"""The kinds of weights by `quant_algo`, which the library writes in small letters, too. NVFP4_SVD
isn't served: its modules have a part of low rank."""
_GROUPS = {"int4": (32, 64, 128, 256), "nvfp4": (16, 32)}
"""Sizes that groups may have, by the levels; else they are those of the scheme."""
_SKIPPED = ("exclude_modules", "ignore")
KNOWN = frozenset(
    {
        *_SKIPPED,
        "config_groups",  # The same once more, in the words of compressed-tensors.
        "group_size",
        "has_zero_point",
        "kv_cache_quant_algo",
        "kv_cache_scheme",
        "moe_quant_algo",
        "pre_quant_scale",  # Which modules have one is seen from their tensors.
        "producer",
        "quant_algo",
        "quant_method",
        "quantized_layers",
    }
)


def read_modelopt(settings: Fields, beside: Fields | None = None) -> QuantisedCheckpoint:
    """`beside`: the content of hf_quant_config.json, which may be the only one to give the group
    size. Raises UnsupportedModel for other weights than those of SCHEMES, and for groups of another
    size."""
    check_known(settings, KNOWN)
    if beside is not None and "group_size" in beside:
        settings = settings.completed(group_size=beside.integer("group_size"))
    return QuantisedCheckpoint(
        method="modelopt",
        schemes=schemes_of(settings),
        unquantised=modules(settings, *_SKIPPED),
    )


def schemes_of(settings: Fields) -> tuple[WeightScheme, ...]:
    """Reads the kinds of weights. Raises UnsupportedModel."""
    algorithm = settings.text("quant_algo")
    parts = _layers(settings) if algorithm.upper() == MIXED else [settings]
    for part in parts:
        if part.flag("has_zero_point", False):
            raise UnsupportedModel(f"{part.where}: weights with zero points are not served")
    return tuple(dict.fromkeys(map(_scheme, parts)))


def _layers(settings: Fields) -> list[Fields]:
    """What is said of single layers, each kind once."""
    layers = settings.section("quantized_layers")
    if not 1 <= len(layers.values) <= MAX_LISTED:
        raise settings.wrong("quantized_layers", f"an object of 1 to {MAX_LISTED} layers")
    kinds = {repr(sorted(layers.section(name).values.items())): name for name in layers.values}
    return [layers.section(name) for name in kinds.values()]


def _scheme(settings: Fields) -> WeightScheme:
    algorithm = settings.text("quant_algo")
    scheme = SCHEMES.get(algorithm.upper())
    if scheme is None:
        raise UnsupportedModel(
            f"{settings.where}: quant_algo is {algorithm[:80]!r}; {', '.join(SCHEMES)} are served, "
            f"and {MIXED} of them"
        )
    if scheme.group_size is None:
        return scheme
    size = settings.integer("group_size", scheme.group_size)
    allowed = _GROUPS.get(scheme.storage, (scheme.group_size,))
    if size not in allowed:
        shown = " or ".join(map(str, allowed))
        raise settings.wrong("group_size", f"{shown}, as of {algorithm},")
    return msgspec.structs.replace(scheme, group_size=size)
