"""GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write it.

Source of the keys: GPTQModel's QuantizeConfig and the transformers library's GPTQConfig.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint, WeightScheme
from penstock.prepare.quantised.settings import CALIBRATION, check_known, group_size, one_of

_KNOWN = CALIBRATION | {
    "bits",
    "group_size",
    "checkpoint_format",
    "format",
    "pack_dtype",
    "dynamic",
    "is_marlin_format",
}
_FORMATS = {"gptq": True, "gptq_v2": False}
"""Whether a format stores zero points minus one."""


def read_gptq(settings: Fields) -> QuantisedCheckpoint:
    """Raises UnsupportedModel for other numbers of bits than 4 and 8, and for the layouts of
    single kernels, such as Marlin's."""
    check_known(settings, _KNOWN)
    bits = settings.integer("bits")
    one_of(settings, "bits", bits, (4, 8))
    form = settings.text("checkpoint_format", settings.text("format", "gptq")).lower()
    one_of(settings, "checkpoint_format", form, tuple(_FORMATS))
    one_of(settings, "is_marlin_format", settings.flag("is_marlin_format", False), (False,))
    one_of(settings, "pack_dtype", settings.text("pack_dtype", "int32"), ("int32",))
    size = group_size(settings, "group_size", 128)
    scheme = WeightScheme(
        storage="gptq",
        bits=bits,
        group_size=size,
        symmetric=False,  # Zero points are stored in any case.
        act_order=settings.flag("desc_act", False),
        zeros_less_one=_FORMATS[form],
    )
    return QuantisedCheckpoint(method="gptq", schemes=(scheme,), unquantised=_skipped(settings))


def _skipped(settings: Fields) -> tuple[str, ...]:
    """Reads `dynamic`: rules by a regular expression of module names. Those with "-:" leave modules
    unquantised; others would give modules settings of their own."""
    rules = settings.section("dynamic")
    for pattern, changes in rules.values.items():
        if not pattern.startswith("-:") and changes:
            raise UnsupportedModel(
                f"{rules.where}: {pattern!r} has settings of its own; only rules that begin "
                "with '-:', which leave modules unquantised, are served"
            )
    return tuple(f"re:{pattern[2:]}" for pattern in rules.values if pattern.startswith("-:"))
