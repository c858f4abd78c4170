"""MXFP4 as gpt-oss's releases have it: experts' matrices in stacks.

Source of the keys: the transformers library's Mxfp4Config.
"""

from __future__ import annotations

from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import check_known, modules

_SKIPPED = "modules_to_not_convert"


def read_mxfp4(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for an unknown setting."""
    check_known(settings, {"quant_method", "dequantize", _SKIPPED})
    return QuantisedCheckpoint(
        method="mxfp4",
        schemes=(WeightScheme(storage="mxfp4", bits=4, group_size=32),),
        unquantised=modules(settings, _SKIPPED),
    )
