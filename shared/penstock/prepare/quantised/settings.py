"""What the readers of quantisation settings have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields

MAX_LISTED = 65_536
"""Most modules that a list may name."""

CALIBRATION = frozenset(
    {
        "act_group_aware",
        "amp",
        "autoround_version",
        "backend",
        "batch_size",
        "block_name_to_quantize",
        "cache_block_outputs",
        "damp_auto_increment",
        "damp_percent",
        "dataset",
        "desc_act",
        "disable_exllama",
        "disable_opt_rtn",
        "do_fuse",
        "dynamic_max_gap",
        "enable_adam",
        "enable_alg_ext",
        "enable_deterministic_algorithms",
        "enable_imatrix",
        "enable_minmax_tuning",
        "enable_norm_bias_tuning",
        "enable_opt_rtn",
        "enable_quanted_input",
        "enable_round_tuning",
        "enable_torch_compile",
        "exllama_config",
        "fuse_max_seq_len",
        "gradient_accumulate_steps",
        "iters",
        "lm_head",
        "low_cpu_mem_usage",
        "low_gpu_mem_usage",
        "lr",
        "lr_scheduler",
        "max_input_length",
        "meta",
        "method",
        "minmax_lr",
        "model_dtype",
        "model_file_base_name",
        "model_name_or_path",
        "model_seqlen",
        "module_name_preceding_first_block",
        "modules_in_block_to_quantize",
        "modules_to_fuse",
        "momentum",
        "mse",
        "nblocks",
        "not_use_best_mse",
        "nsamples",
        "pad_token_id",
        "provider",
        "quant_block_list",
        "quant_lm_head",
        "quant_method",
        "sampler",
        "scale_dtype",
        "seed",
        "seqlen",
        "static_attention_dtype",
        "static_attention_granularity",
        "static_groups",
        "static_kv_dtype",
        "static_kv_granularity",
        "sym",
        "to_quant_block_names",
        "tokenizer",
        "train_bs",
        "true_sequential",
        "use_cuda_fp16",
        "use_exllama",
    }
)
"""Settings of AWQ, GPTQ and AutoRound that say how weights were quantised, or which kernels another
program takes: stored numbers mean the same whatever they say. (Which modules are quantised is seen
from the tensors.)"""

AUTO_ROUND = CALIBRATION | {
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "bits",
    "data_type",
    "group_size",
}
"""What AutoRound says of weights and activations, also in its exports to other formats."""


def check_known(settings: Fields, known: Collection[str]) -> None:
    """Raises UnsupportedModel for a setting that isn't among `known` and has an effect, as that
    effect is unknown."""
    for key, value in settings.values.items():
        if key not in known and not is_empty(value):
            raise UnsupportedModel(
                f"{settings.where}: the setting {key!r} is unknown here, and may change what the "
                f"weights mean; known are {', '.join(sorted(known))}"
            )


def is_empty(value: Any) -> bool:
    """Returns whether a value says nothing."""
    return value is None or value is False or value in ("", [], {})


def one_of(settings: Fields, key: str, found: Any, allowed: Collection[Any]) -> None:
    """Raises UnsupportedModel unless the value that was found is among the allowed ones."""
    if found not in allowed:
        shown = " or ".join(map(repr, allowed))
        raise UnsupportedModel(f"{settings.where}: {key} is {found!r}; {shown} is served")


def group_size(settings: Fields, key: str, default: int | None = None) -> int | None:
    """Reads the number of inputs that share a scale; -1 stands for all of them, which is None."""
    size = settings.integer(key, default)
    if size != -1 and not 1 <= size <= 1 << 24:
        raise settings.wrong(key, "-1, or a positive number of inputs")
    return None if size == -1 else size


def modules(settings: Fields, *keys: str) -> tuple[str, ...]:
    """Reads the first list of module names that there is."""
    for key in keys:
        if key in settings:
            names = settings.listed(key, str)
            if len(names) > MAX_LISTED:
                raise UnsupportedModel(
                    f"{settings.where}: {key} names {len(names)} modules; at most {MAX_LISTED} may"
                )
            return tuple(names)
    return ()
