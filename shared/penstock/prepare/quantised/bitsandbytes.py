"""NF4 (Dettmers et al., "QLoRA", 2023), as bitsandbytes and the transformers library write it.

Source of the keys: the transformers library's BitsAndBytesConfig.
"""

from __future__ import annotations

from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import check_known, modules, one_of

_KNOWN = {
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
    """Raises UnsupportedModel for anything but NF4."""
    check_known(settings, _KNOWN)
    four = settings.flag("load_in_4bit", settings.flag("_load_in_4bit", False))
    one_of(settings, "load_in_4bit", four, (True,))
    kind = settings.text("bnb_4bit_quant_type", "fp4")
    one_of(settings, "bnb_4bit_quant_type", kind, ("nf4",))
    storage = settings.text("bnb_4bit_quant_storage", "uint8")
    one_of(settings, "bnb_4bit_quant_storage", storage, ("uint8",))
    return QuantisedCheckpoint(
        method="bitsandbytes",
        schemes=(WeightScheme(storage="nf4", bits=4),),
        unquantised=modules(settings, "llm_int8_skip_modules"),
    )
