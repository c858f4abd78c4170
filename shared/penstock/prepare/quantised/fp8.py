"""FP8 weights: DeepSeek's in blocks, one scale for a matrix, and fbgemm's one scale per output.

Source of the keys: the transformers library's FineGrainedFP8Config and FbgemmFp8Config. Activations
are meant to be FP8 too; where they are, their scales are computed from them, whatever the file has.
"""

from __future__ import annotations

from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import check_known, modules, one_of

_SKIPPED = ("modules_to_not_convert", "ignored_layers")
_KNOWN = {
    *_SKIPPED,
    "activation_scheme",
    "dequantize",
    "fmt",
    "kv_cache_scheme",
    "modules_to_convert",
    "quant_method",
    "scale_fmt",
    "weight_block_size",
}
_FBGEMM = {*_SKIPPED, "activation_scale_ub", "quant_method"}


def read_fp8(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for another type than e4m3."""
    check_known(settings, _KNOWN)
    one_of(settings, "fmt", settings.text("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    one_of(settings, "scale_fmt", settings.text("scale_fmt", "float"), ("float", "ue8m0"))
    block = block_of(settings, "weight_block_size")
    scheme = WeightScheme(storage="fp8", bits=8, block=block, float8_inputs=True)
    return QuantisedCheckpoint(
        method="fp8", schemes=(scheme,), unquantised=modules(settings, *_SKIPPED)
    )


def read_fbgemm_fp8(settings: Fields) -> QuantisedCheckpoint:
    """Reads FBGEMM's FP8, which has one scale per output."""
    check_known(settings, _FBGEMM)
    scheme = WeightScheme(storage="fp8", bits=8, float8_inputs=True)
    return QuantisedCheckpoint(
        method="fbgemm_fp8", schemes=(scheme,), unquantised=modules(settings, *_SKIPPED)
    )


def block_of(settings: Fields, key: str) -> tuple[int, int] | None:
    """Reads (outputs, inputs) that share a scale; None if it isn't said."""
    if key not in settings:
        return None
    sizes = settings.listed(key, int)
    if len(sizes) != 2 or min(sizes) < 1:
        raise settings.wrong(key, "a list of two positive numbers")
    return sizes[0], sizes[1]
