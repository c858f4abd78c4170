"""Keywords of LLM and AsyncLLM: this project's settings, and vLLM's names for what is here too.

A keyword of vLLM's that means something here sets it.  One that asks for what happens anyway is
accepted.  Everything else is an error that names the keyword and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import logs
from penstock.config.settings import EngineConfig
from penstock.config.tree import leaves, replace_settings
from penstock.errors import InvalidRequest

log = logs.get(__name__)

RENAMED = {
    "block_size": "kv_block_size",
    "num_gpu_blocks_override": "num_kv_blocks",
    "swap_space": "host_kv_gib",
}
"""vLLM's name -> the setting here with the same meaning and unit."""

VALUES = {
    ("dtype", "float"): "float32",
    ("dtype", "half"): "float16",
    ("scheduling_policy", None): "fcfs",
    ("quantization", None): "none",
    ("load_format", "safetensors"): "auto",
    ("load_format", "gguf"): "auto",
}
"""(setting, vLLM's value) -> the value here. None otherwise means the default."""


@dataclass(frozen=True)
class Foreign:
    """A keyword of vLLM's without a setting here. default: vLLM's.  allowed: the values that ask
    for what happens here anyway; empty: any, since it changes no output.  note: said when it is
    given another value than the default, for those who expect an effect."""

    default: Any = None
    allowed: tuple[Any, ...] = ()
    note: str = ""


FOREIGN: dict[str, Foreign] = {
    "tokenizer": Foreign(None, (None,)),
    "tokenizer_mode": Foreign("auto", ("auto",)),
    "skip_tokenizer_init": Foreign(False, (False,)),
    "trust_remote_code": Foreign(False, (False,)),
    "data_parallel_size": Foreign(1, (1,)),
    "enable_expert_parallel": Foreign(False, (False,)),
    "distributed_executor_backend": Foreign(None, (None, "mp", "uni")),
    "task": Foreign(None, (None, "auto", "generate")),
    "revision": Foreign(None, (None,)),
    "code_revision": Foreign(None, (None,)),
    "tokenizer_revision": Foreign(None, (None,)),
    "hf_token": Foreign(None, (None, False)),
    "hf_overrides": Foreign(None, (None, {})),
    "config_format": Foreign("auto", ("auto", "hf")),
    "cpu_offload_gb": Foreign(0, (0,)),
    "disable_log_stats": Foreign(True),
    "disable_custom_all_reduce": Foreign(False),
    "use_v2_block_manager": Foreign(True),
    "compilation_config": Foreign(None, (), "nothing is compiled here"),
    "enable_chunked_prefill": Foreign(None, (None, True)),
    "max_num_partial_prefills": Foreign(1, (1,)),
    "max_logprobs": Foreign(20, tuple(range(21))),
    "logprobs_mode": Foreign("raw_logprobs", ("raw_logprobs",)),
    "disable_sliding_window": Foreign(False, (False,)),
    "disable_cascade_attn": Foreign(False),
    "generation_config": Foreign("auto", ("auto",)),
    "enable_lora": Foreign(False, (False,)),
    "speculative_config": Foreign(None, (None,)),
    "limit_mm_per_prompt": Foreign(None, (None, {})),
    "mm_processor_kwargs": Foreign(None, (None, {})),
    "allowed_local_media_path": Foreign("", ("",)),
    "async_scheduling": Foreign(None),
}


def engine_config(keywords: Mapping[str, Any]) -> EngineConfig:
    """The configuration that these keywords describe. Raises InvalidRequest."""
    known = {leaf.name: leaf for leaf in leaves(EngineConfig)}
    settings: dict[str, Any] = {}
    for given, value in keywords.items():
        name = RENAMED.get(given, given)
        if name in settings and settings[name] != value:
            raise InvalidRequest(f"{given}: {name} was given as well, with another value")
        if name not in known and name in FOREIGN:
            _check_foreign(name, value, keywords.get("model"))
            continue
        try:
            value = VALUES.get((name, value), value)
        except TypeError:  # not hashable: whatever it is, the check below names it
            pass
        if value is None and name in known and not known[name].optional:
            continue  # as in vLLM: the default
        if name == "served_model_name" and isinstance(value, list) and len(value) == 1:
            value = value[0]
        settings[name] = value
    return replace_settings(EngineConfig(), settings)


def _check_foreign(name: str, value: Any, model: Any) -> None:
    foreign = FOREIGN[name]
    if name == "tokenizer" and value == model:
        return
    if foreign.allowed and not any(_same(value, one) for one in foreign.allowed):
        allowed = ", ".join(map(repr, foreign.allowed[:4]))
        if len(foreign.allowed) > 4:
            allowed = f"{foreign.allowed[0]!r} to {foreign.allowed[-1]!r}"
        if name == "tokenizer":
            allowed += " or the model itself: a tokenizer comes with its model"
        raise InvalidRequest(
            f"{name}: {value!r} is not supported here; allowed: {allowed}", param=name
        )
    if foreign.note and value != foreign.default:
        log.warning(f"{name}={value!r} has no effect here: {foreign.note}")


def _same(value: Any, allowed: Any) -> bool:
    # True == 1, and yet data_parallel_size=True is a mistake.
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)
