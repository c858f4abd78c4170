"""Checkpoints of Intel's AutoRound, which stores weights as GPTQ, AWQ or compressed-tensors do.

Source of the keys: what that library's export writes, and what its loader makes of
`packing_format`. Its exports in other formats name those formats as their quant_method. What they
say of activations changes nothing but for FP8, whose kernels may take them in FP8 too.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.methods import awq_scheme, block_of, gptq_scheme
from penstock.prepare.quantised.settings import AUTO_ROUND, MAX_LISTED, check_known, one_of

_KNOWN = AUTO_ROUND | {
    "activation_scheme",
    "extra_config",
    "fmt",
    "packing_format",
    "weight_block_size",
}
_UNQUANTISED_BITS = 16

_FLOATS: dict[tuple[str, int], WeightScheme] = {
    ("mx_fp", 4): WeightScheme(storage="mxfp4", bits=4, group_size=32),
    ("mx_fp", 8): WeightScheme(storage="fp8", bits=8, block=(1, 32)),
    ("nv_fp", 4): WeightScheme(storage="nvfp4", bits=4, group_size=16),
}
"""The schemes of llm_compressor's layout, by type and bits of the weights. The types have variants,
which say how scales were found: mx_fp_rceil, nv_fp4_with_static_gs."""


def _of_floats(settings: Fields) -> WeightScheme:
    kind, bits = settings.text("data_type"), settings.integer("bits")
    for (name, size), scheme in _FLOATS.items():
        if kind.startswith(name) and bits == size:
            return scheme
    shown = ", ".join(f"{name} of {size} bits" for name, size in _FLOATS)
    raise UnsupportedModel(
        f"{settings.where}: data_type is {kind[:80]!r} of {bits} bits; {shown} are served in the "
        "layout of llm_compressor"
    )


def _first_gptq(settings: Fields) -> WeightScheme:
    return gptq_scheme(settings, zeros_less_one=True)


def _second_gptq(settings: Fields) -> WeightScheme:
    return gptq_scheme(settings, zeros_less_one=False)


def _fp8(settings: Fields) -> WeightScheme:
    one_of(settings, "fmt", settings.text("fmt", "e4m3"), ("e4m3",))
    one_of(settings, "bits", settings.integer("bits"), (8,))
    return WeightScheme(
        storage="fp8",
        bits=8,
        block=block_of(settings, "weight_block_size"),
        float8_inputs=settings.integer("act_bits", _UNQUANTISED_BITS) == 8,
    )


_PACKINGS: dict[str, Callable[[Fields], WeightScheme]] = {
    "auto_gptq": _first_gptq,
    "gptq": _first_gptq,
    "gptqmodel": _second_gptq,
    "auto_awq": awq_scheme,
    "awq": awq_scheme,
    "llm_compressor": _of_floats,
    "fp8": _fp8,
    "fp8_static": _fp8,
    "": _second_gptq,
}
"""What stores a matrix, by what follows "auto_round:" in `packing_format`."""
_FLOAT8 = "auto_round:fp8"
_KERNELS = ("exllamav2", "tritonv2", "triton", "cuda", "marlin", "torch")
"""Names of kernels, which may follow the layout in `packing_format` and change nothing."""


def read_auto_round(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for other layouts and numbers than those above."""
    check_known(settings, _KNOWN)
    packing = _packing(settings)
    own = settings.section("extra_config")
    if len(own.values) > MAX_LISTED:
        raise own.wrong("extra_config", f"an object of at most {MAX_LISTED} modules")
    groups, plain = [settings], []
    for name in own.values:
        check_known(own.section(name), AUTO_ROUND)
        # A null repeats what holds for all.
        stated = {key: each for key, each in own.section(name).values.items() if each is not None}
        groups.append(settings.replaced(stated))
        if groups[-1].integer("bits") >= _UNQUANTISED_BITS:
            plain.append(name)
            groups.pop()
    return QuantisedCheckpoint(
        method="auto-round",
        schemes=tuple(dict.fromkeys(map(packing, groups))),
        unquantised=tuple(plain),
    )


def _packing(settings: Fields) -> Callable[[Fields], WeightScheme]:
    """Returns what reads a scheme. Files of before 2025 say the layout in `backend` only, and those
    of FP8 without quantised activations nowhere."""
    older = settings.text("backend", "")
    default = "auto_round:auto_gptq" if settings.text("data_type", "int") == "int" else _FLOAT8
    default = older if older.startswith("auto") and ":" in older else default
    stated = settings.text("packing_format", default)
    head, *words = stated.replace("autoround", "auto_round").split(":")
    kind = ":".join(word for word in words if word not in _KERNELS)
    if head != "auto_round" or kind not in _PACKINGS:
        allowed = ", ".join(f"auto_round:{each}" if each else "auto_round" for each in _PACKINGS)
        raise UnsupportedModel(
            f"{settings.where}: packing_format is {stated[:80]!r}; {allowed} are served"
        )
    return _PACKINGS[kind]
