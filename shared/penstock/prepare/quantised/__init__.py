"""Reads what config.json says of a checkpoint's quantisation. A method needs a reader, and its
line in METHODS."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock.prepare.quantised.auto_round import read_auto_round
from penstock.prepare.quantised.compressed_tensors import read_compressed_tensors
from penstock.prepare.quantised.methods import (
    read_awq,
    read_bitnet,
    read_bitsandbytes,
    read_fbgemm_fp8,
    read_fp8,
    read_gptq,
    read_hqq,
    read_mxfp4,
    read_mxfp8,
)
from penstock.prepare.quantised.modelopt import read_modelopt

METHODS: dict[str, Callable[[Fields], QuantisedCheckpoint]] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm_fp8,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
    "mxfp8": read_mxfp8,
    "hqq": read_hqq,
    "bitnet": read_bitnet,
    "modelopt": read_modelopt,
    "auto-round": read_auto_round,
    "auto_round": read_auto_round,
    "intel/auto-round": read_auto_round,
}
"""Readers of quantised checkpoints by quant_method."""

_MLX = "quantization"
KEYS = ("quantization_config", "compression_config", _MLX)
"""Keys of the section in config.json; the second is compressed-tensors' older name, the third
MLX's."""
_SAYING = ("bits", "quant_algo", "quant_method")
"""Settings of which MLX's section must have one: other programs leave "none" or nothing there."""


def read_quantisation(config: Fields, beside: Fields | None = None) -> QuantisedCheckpoint | None:
    """Returns how the checkpoint is quantised; None if it isn't. `beside`: the content of
    hf_quant_config.json, which says it where config.json doesn't. Raises UnsupportedModel for a
    method or a variant that isn't served, and for any setting that is unknown here."""
    key = next((key for key in KEYS if key in config and _says_it(config, key)), None)
    if key is None:
        if beside is None or not beside.values:
            return None
        return read_modelopt(beside.section("quantization"))
    settings = config.section(key)
    mlx = "bits" in settings and "group_size" in settings
    unnamed = "modelopt" if "quant_algo" in settings else "MLX" if mlx else "unnamed"
    method = settings.text("quant_method", unnamed)
    if method not in METHODS:
        raise UnsupportedModel(
            f"{config.where}: weights quantised by {method} are not served; "
            f"{', '.join(METHODS)} are, and quantised GGUF files"
        )
    if method == "modelopt":
        return read_modelopt(settings, beside and beside.section("quantization"))
    if method == "fp8":
        return read_fp8(settings, config.text("expert_dtype", "fp8"))
    return METHODS[method](settings)


def _says_it(config: Fields, key: str) -> bool:
    """Whether the section says how weights are quantised."""
    found = config.values[key]
    return key != _MLX or (
        isinstance(found, Mapping) and any(found.get(each) is not None for each in _SAYING)
    )
