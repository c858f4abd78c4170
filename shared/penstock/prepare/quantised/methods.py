"""Reads the settings of checkpoints that are quantised by one method throughout.

Those of the compressed-tensors library, which mixes methods, are read in
`penstock.prepare.quantised.compressed_tensors`.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised import modelopt
from penstock.prepare.quantised.settings import (
    AUTO_ROUND,
    MAX_LISTED,
    check_known,
    group_size,
    modules,
    one_of,
)

# FP8 weights: DeepSeek's in blocks, one scale for a matrix, and fbgemm's one scale per output.
#
# Source of the keys: the transformers library's FineGrainedFP8Config and FbgemmFp8Config.
# Activations are meant to be FP8 too; where they are, their scales are computed from them,
# whatever the file has.

_FP8_SKIPPED = ("modules_to_not_convert", "ignored_layers")
_FP8_KEYS = {
    *_FP8_SKIPPED,
    *AUTO_ROUND,
    "activation_scheme",
    "dequantize",
    "fmt",
    "kv_cache_scheme",
    "modules_to_convert",
    "scale_fmt",
    "weight_block_size",
}
_FBGEMM = {*_FP8_SKIPPED, "activation_scale_ub", "quant_method"}


FP4 = WeightScheme(storage="mxfp4", bits=4, group_size=32)
"""Experts of releases whose config.json says `expert_dtype` fp4 (DeepSeek-V4)."""


def read_fp8(settings: Fields, experts: str = "fp8") -> QuantisedCheckpoint:
    """Reads FP8 of everything but experts, which may have 4 bits: as Model Optimizer says it among
    these settings, or where it doesn't, `experts` does. Raises UnsupportedModel for another type
    than e4m3, which has 8 bits."""
    again = "quant_algo" in settings
    check_known(settings, _FP8_KEYS | modelopt.KNOWN if again else _FP8_KEYS)
    one_of(settings, "expert_dtype", experts, ("fp8", "fp4"))
    one_of(settings, "fmt", settings.text("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    one_of(settings, "scale_fmt", settings.text("scale_fmt", "float"), ("float", "ue8m0"))
    one_of(settings, "bits", settings.integer("bits", 8), (8,))
    block = block_of(settings, "weight_block_size")
    schemes = [WeightScheme(storage="fp8", bits=8, block=block, float8_inputs=True)]
    if again:  # What it lists as unquantised is what it has left as it was: FP8.
        schemes += modelopt.schemes_of(settings)
    elif experts == "fp4":
        schemes.append(FP4)
    return QuantisedCheckpoint(
        method="fp8", schemes=tuple(schemes), unquantised=modules(settings, *_FP8_SKIPPED)
    )


def read_mxfp8(settings: Fields) -> QuantisedCheckpoint:
    """Reads FP8 in blocks of 32 inputs whose scales are powers of two (OCP microscaling formats,
    2023), as MiniMax M3 has it. Raises UnsupportedModel for blocks of another size."""
    check_known(settings, _FP8_KEYS)
    one_of(settings, "fmt", settings.text("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    one_of(settings, "scale_fmt", settings.text("scale_fmt", "ue8m0"), ("ue8m0",))
    scheme = modelopt.SCHEMES["MXFP8"]
    if block_of(settings, "weight_block_size") not in (None, scheme.block):
        raise settings.wrong("weight_block_size", "[1, 32]")
    return QuantisedCheckpoint(
        method="mxfp8", schemes=(scheme,), unquantised=modules(settings, *_FP8_SKIPPED)
    )


def read_fbgemm_fp8(settings: Fields) -> QuantisedCheckpoint:
    """Reads FBGEMM's FP8, which has one scale per output."""
    check_known(settings, _FBGEMM)
    scheme = WeightScheme(storage="fp8", bits=8, float8_inputs=True)
    return QuantisedCheckpoint(
        method="fbgemm_fp8", schemes=(scheme,), unquantised=modules(settings, *_FP8_SKIPPED)
    )


def block_of(settings: Fields, key: str) -> tuple[int, int] | None:
    """Reads (outputs, inputs) that share a scale; None if it isn't said."""
    if key not in settings:
        return None
    sizes = settings.listed(key, int)
    if len(sizes) != 2 or min(sizes) < 1:
        raise settings.wrong(key, "a list of two positive numbers")
    return sizes[0], sizes[1]


# GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write it.
#
# Source of the keys: GPTQModel's QuantizeConfig and the transformers library's GPTQConfig.

_GPTQ_KEYS = AUTO_ROUND | {
    "checkpoint_format",
    "format",
    "pack_dtype",
    "dynamic",
    "is_marlin_format",
}
_GPTQ_FORMATS = {"gptq": True, "gptq_v2": False}
"""Whether a format stores zero points minus one."""


_GPTQ_BITS = (2, 3, 4, 5, 6, 7, 8)
_SKIPS = "-:"


def read_gptq(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for an unknown number of bits, and for the layouts of single kernels,
    such as Marlin's."""
    check_known(settings, _GPTQ_KEYS)
    form = settings.text("checkpoint_format", settings.text("format", "gptq")).lower()
    one_of(settings, "checkpoint_format", form, tuple(_GPTQ_FORMATS))
    one_of(settings, "is_marlin_format", settings.flag("is_marlin_format", False), (False,))
    one_of(settings, "pack_dtype", settings.text("pack_dtype", "int32"), ("int32",))
    # Rules by a regular expression of module names. Those with "-:" leave modules unquantised;
    # others give them settings of their own.
    rules = settings.section("dynamic")
    skips = [pattern for pattern in rules.values if pattern.startswith(_SKIPS)]
    groups = [settings]
    for pattern in rules.values:
        if pattern not in skips:
            check_known(rules.section(pattern), AUTO_ROUND)
            groups.append(settings.replaced(rules.section(pattern).values))
    schemes = [gptq_scheme(group, zeros_less_one=_GPTQ_FORMATS[form]) for group in groups]
    return QuantisedCheckpoint(
        method="gptq",
        schemes=tuple(dict.fromkeys(schemes)),
        unquantised=tuple(f"re:{pattern.removeprefix(_SKIPS)}" for pattern in skips),
    )


def _check_integers(settings: Fields) -> None:
    """Raises UnsupportedModel where AutoRound, which writes GPTQ's and AWQ's layouts too, says that
    the levels are floats."""
    one_of(settings, "data_type", settings.text("data_type", "int"), ("int",))


def gptq_scheme(settings: Fields, *, zeros_less_one: bool) -> WeightScheme:
    """Reads bits, group size and act-order."""
    _check_integers(settings)
    bits = settings.integer("bits")
    one_of(settings, "bits", bits, _GPTQ_BITS)
    return WeightScheme(
        storage="gptq",
        bits=bits,
        group_size=group_size(settings, "group_size", 128),
        symmetric=False,  # Zero points are stored in any case.
        act_order=settings.flag("desc_act", False),
        zeros_less_one=zeros_less_one,
    )


# AWQ (Lin et al., 2023), as AutoAWQ writes it.
#
# Source of the keys: AutoAWQ's AwqConfig and that of the transformers library.

_AWQ_KEYS = AUTO_ROUND | {
    "w_bit",
    "q_group_size",
    "zero_point",
    "version",
    "format",
    "checkpoint_format",
    "pack_dtype",
    "modules_to_not_convert",
}


def read_awq(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for a layout other than that of 4 bits for GEMM kernels."""
    check_known(settings, _AWQ_KEYS)
    return QuantisedCheckpoint(
        method="awq",
        schemes=(awq_scheme(settings),),
        unquantised=modules(settings, "modules_to_not_convert"),
    )


def awq_scheme(settings: Fields) -> WeightScheme:
    """Reads bits, group size and layout. Zero points are stored whether or not `zero_point`."""
    _check_integers(settings)
    bits = settings.integer("bits" if "bits" in settings else "w_bit", 4)
    one_of(settings, "bits", bits, (4,))
    # The layouts of the other kernels store the same numbers in other orders.
    for key in ("version", "format", "checkpoint_format"):
        one_of(settings, key, settings.text(key, "gemm").lower(), ("gemm",))
    one_of(settings, "pack_dtype", settings.text("pack_dtype", "int32"), ("int32",))
    size = group_size(settings, "group_size" if "group_size" in settings else "q_group_size", 128)
    return WeightScheme(storage="awq", bits=4, group_size=size, symmetric=False)


_BITSANDBYTES_KEYS = {
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "load_in_4bit",
    "load_in_8bit",
    "quant_method",
}


def read_bitsandbytes(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for anything but NF4, FP4 and INT8.

    NF4, FP4 and INT8 (Dettmers et al., "QLoRA", 2023, and "LLM.int8()", 2022), as bitsandbytes and
    the transformers library write them.

    Source of the keys: the transformers library's BitsAndBytesConfig.
    """
    check_known(settings, _BITSANDBYTES_KEYS)
    four, eight = (
        settings.flag(f"load_in_{bits}bit", settings.flag(f"_load_in_{bits}bit", False))
        for bits in (4, 8)
    )
    if four == eight:
        raise UnsupportedModel(
            f"{settings.where}: load_in_4bit and load_in_8bit are both {four}; one of them is true "
            "in a checkpoint"
        )
    return QuantisedCheckpoint(
        method="bitsandbytes",
        schemes=(WeightScheme(storage="int8", bits=8) if eight else _four_bits(settings),),
        unquantised=modules(settings, "llm_int8_skip_modules"),
    )


def _four_bits(settings: Fields) -> WeightScheme:
    kind = settings.text("bnb_4bit_quant_type", "fp4")
    one_of(settings, "bnb_4bit_quant_type", kind, ("nf4", "fp4"))
    return WeightScheme(storage="fp4" if kind == "fp4" else "nf4", bits=4)


_HQQ_GROUP = {"offload_meta", "scale_quant_params", "weight_quant_params", "zero_quant_params"}
_HQQ_WEIGHTS = {
    "axis",
    "channel_wise",
    "group_size",
    "nbits",
    "optimize",
    "round_zero",
    "view_as_float",
}


def read_hqq(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for groups of outputs, 3 bits, and scales that are quantised too.

    HQQ, as the transformers library saves it.

    Source of the keys: that library's HqqConfig and the hqq library's BaseQuantizeConfig.
    """
    check_known(settings, {"quant_config", "quant_method", "skip_modules"})
    found = settings.section("quant_config")
    # With settings of their own, modules are named here: self_attn.q_proj.
    alike = "weight_quant_params" in found
    groups = [found] if alike else [found.section(name) for name in found.values]
    if not 1 <= len(groups) <= MAX_LISTED:
        raise settings.wrong("quant_config", f"an object of 1 to {MAX_LISTED} modules")
    return QuantisedCheckpoint(
        method="hqq",
        schemes=tuple(dict.fromkeys(map(_hqq_scheme, groups))),
        unquantised=modules(settings, "skip_modules"),
    )


def _hqq_scheme(group: Fields) -> WeightScheme:
    check_known(group, _HQQ_GROUP)
    for key in ("scale_quant_params", "zero_quant_params"):
        one_of(group, key, group.values.get(key), (None,))
    one_of(group, "offload_meta", group.flag("offload_meta", False), (False,))
    weights = group.section("weight_quant_params")
    check_known(weights, _HQQ_WEIGHTS)
    bits = weights.integer("nbits")
    one_of(weights, "nbits", bits, (1, 2, 4, 8))
    one_of(weights, "axis", weights.integer("axis"), (1,))
    one_of(weights, "view_as_float", weights.flag("view_as_float", False), (False,))
    size = group_size(weights, "group_size", -1)
    return WeightScheme(storage="hqq", bits=bits, group_size=size, symmetric=False)


_BITNET_KEYS = {
    *("linear_class", "modules_to_not_convert", "quant_method", "quantization_mode"),
    *("rms_norm_eps", "use_rms_norm"),
}


def read_bitnet(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for weights that are rounded to three values only when they are used
    (`online`), and for norms in front of each product.

    Ternary weights (Ma et al., "The era of 1-bit LLMs", 2024), as the transformers library saves
    them.

    Source of the keys: that library's BitNetQuantConfig.
    """
    check_known(settings, _BITNET_KEYS)
    mode = settings.text("quantization_mode", "offline")
    one_of(settings, "quantization_mode", mode, ("offline",))
    one_of(settings, "use_rms_norm", settings.flag("use_rms_norm", False), (False,))
    kind = settings.text("linear_class", "bitlinear")
    one_of(settings, "linear_class", kind, ("autobitlinear", "bitlinear"))
    scheme = WeightScheme(storage="ternary", bits=2, scale_divides=kind == "bitlinear")
    return QuantisedCheckpoint(
        method="bitnet",
        schemes=(scheme,),
        unquantised=modules(settings, "modules_to_not_convert"),
    )


_MXFP4_SKIPPED = "modules_to_not_convert"


def read_mxfp4(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for an unknown setting.

    MXFP4 as gpt-oss's releases have it: experts' matrices in stacks.

    Source of the keys: the transformers library's Mxfp4Config.
    """
    check_known(settings, {"quant_method", "dequantize", _MXFP4_SKIPPED})
    return QuantisedCheckpoint(
        method="mxfp4",
        schemes=(WeightScheme(storage="mxfp4", bits=4, group_size=32),),
        unquantised=modules(settings, _MXFP4_SKIPPED),
    )
