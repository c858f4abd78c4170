"""vLLM's names for settings, for its command lines and scripts: what they mean here.

A name of vLLM's that means something here sets it.  One that asks for what happens anyway is
accepted.  Everything else is an error that names what was given and what is allowed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidRequest
from penstock.process import logs

log = logs.get(__name__)

RENAMED = {
    "block_size": "kv_block_size",
    "num_gpu_blocks_override": "num_kv_blocks",
    "swap_space": "host_kv_gib",
    "api_server_count": "gateways",
    "download_dir": "cache_dir",
}
"""vLLM's name -> the setting here with the same meaning and unit."""

SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "quantization": "-q",
}
"""Setting -> the flag of a few letters that vLLM has for it."""

VALUES = {
    ("dtype", "float"): "float32",
    ("dtype", "half"): "float16",
    ("scheduling_policy", None): "fcfs",
    ("quantization", None): "none",
    ("model_impl", "vllm"): "penstock",
    ("load_format", "safetensors"): "auto",
    ("load_format", "gguf"): "auto",
}
"""(setting, vLLM's value) -> the value here. None otherwise means the default."""


@dataclass(frozen=True)
class Foreign:
    """A name of vLLM's without a setting here. default: vLLM's.  allowed: the values that ask for
    what happens here anyway; empty: any, since it changes no output.  note: said when it is given
    another value than the default, for those who expect an effect."""

    default: Any = None
    allowed: tuple[Any, ...] = ()
    note: str = ""

    @property
    def switch(self) -> bool:
        """Whether its flag has no value."""
        return isinstance(self.default, bool) or any(one is True for one in self.allowed)


FOREIGN: dict[str, Foreign] = {
    "tokenizer": Foreign(None, (None,)),
    "tokenizer_mode": Foreign("auto", ("auto",)),
    "skip_tokenizer_init": Foreign(False, (False,)),
    # No code of a model's is ever run; one that needs it is refused for its architecture.
    "trust_remote_code": Foreign(False),
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
    "async_scheduling": Foreign(None, (None, True, False)),
    "disable_mm_preprocessor_cache": Foreign(False, (), "mm_processor_cache_gb=0 keeps nothing"),
    "mm_processor_cache_type": Foreign("lru"),
    "mm_encoder_tp_mode": Foreign("weights"),
    "skip_mm_profiling": Foreign(False),
    "enable_mm_embeds": Foreign(False, (False,)),
    "interleave_mm_strings": Foreign(False, (False,)),
}

SERVER_FOREIGN: dict[str, Foreign] = {
    "disable_log_requests": Foreign(False),
    "enable_log_requests": Foreign(False, (), "--access-log text says who asked for what"),
    "max_log_len": Foreign(None),
    "disable_uvicorn_access_log": Foreign(False),
    "uvicorn_log_level": Foreign("info"),
    "disable_frontend_multiprocessing": Foreign(False),
    "response_role": Foreign("assistant", ("assistant",)),
}
"""Settings that only `vllm serve` has."""


def check_foreign(name: str, one: Foreign, value: Any, model: Any = None) -> None:
    """Raises InvalidRequest for a value that asks for what is not done here. model: the one that
    is named with it, which is allowed as its own tokenizer."""
    if name == "tokenizer" and value == model:
        return
    if one.allowed and not any(_same(value, each) for each in one.allowed):
        allowed = ", ".join(map(repr, one.allowed[:4]))
        if len(one.allowed) > 4:
            allowed = f"{one.allowed[0]!r} to {one.allowed[-1]!r}"
        if name == "tokenizer":
            allowed += " or the model itself: a tokenizer comes with its model"
        raise InvalidRequest(
            f"{name}: {value!r} is not supported here; allowed: {allowed}", param=name
        )
    if one.note and value != one.default:
        log.warning(f"{name}={value!r} has no effect here: {one.note}")


def read_value(text: str) -> Any:
    """What a flag's text stands for: a number, true, false, none, JSON, or itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def _same(value: Any, allowed: Any) -> bool:
    # True == 1, and yet data_parallel_size=True is a mistake.
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)
