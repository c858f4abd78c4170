"""AWQ (Lin et al., 2023), as AutoAWQ writes it.

Source of the keys: AutoAWQ's AwqConfig and that of the transformers library.
"""

from __future__ import annotations

from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import (
    CALIBRATION,
    check_known,
    group_size,
    modules,
    one_of,
)

_KNOWN = CALIBRATION | {
    "bits",
    "w_bit",
    "group_size",
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
    check_known(settings, _KNOWN)
    bits = settings.integer("bits" if "bits" in settings else "w_bit", 4)
    one_of(settings, "bits", bits, (4,))
    # The layouts of the other kernels store the same numbers in other orders.
    for key in ("version", "format", "checkpoint_format"):
        one_of(settings, key, settings.text(key, "gemm").lower(), ("gemm",))
    one_of(settings, "pack_dtype", settings.text("pack_dtype", "int32"), ("int32",))
    one_of(settings, "zero_point", settings.flag("zero_point", True), (True,))
    size = group_size(settings, "group_size" if "group_size" in settings else "q_group_size", 128)
    scheme = WeightScheme(storage="awq", bits=4, group_size=size, symmetric=False)
    return QuantisedCheckpoint(
        method="awq", schemes=(scheme,), unquantised=modules(settings, "modules_to_not_convert")
    )
