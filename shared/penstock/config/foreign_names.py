"""Other programs' names for settings: vLLM's, which are taken, and others', by which
ours are found."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidRequest
from penstock.process import logs

# vLLM's names for settings, for its command lines and scripts: what they mean here.
#
# A name of vLLM's that means something here sets it.  One that asks for what happens anyway is
# accepted.  Everything else is an error that names what was given and what is allowed.

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
    "distributed_executor_backend": Foreign(None, (None, "mp", "uni")),
    "task": Foreign(None, (None, "auto", "generate")),
    "revision": Foreign(None, (None,)),
    "code_revision": Foreign(None, (None,)),
    "tokenizer_revision": Foreign(None, (None,)),
    "hf_token": Foreign(None, (None, False)),
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
    # Both are there anyway.
    "enable_server_load_tracking": Foreign(False),
    "enable_tokenizer_info_endpoint": Foreign(False),
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


# Other programs' words for our settings: the error for one of them names ours.
#
# From llama-server, Ollama, TGI, SGLang, LMDeploy and everyday speech. Words of vLLM's that are
# taken as they are don't stand here.
_SAME = {
    "max_model_len": "ctx_size context_length context_size context_len context n_ctx num_ctx"
    " max_context_length max_context_len max_seq_len max_sequence_length max_total_tokens"
    " max_length session_len seq_length c",
    "max_num_seqs": "parallel n_parallel num_parallel max_batch_size max_concurrent_requests"
    " max_running_requests concurrency max_concurrency slots np",
    "max_num_batched_tokens": "batch_size ubatch_size max_batch_prefill_tokens"
    " chunked_prefill_size max_prefill_tokens b ub",
    "max_waiting_requests": "max_queue_size queue_size max_queued_requests",
    "threads": "n_threads num_threads cpu_threads num_thread cores cpus t",
    "gateways": "workers num_workers http_workers frontends",
    "data_parallel_size": "replicas num_replicas dp_size dp engines",
    "tensor_parallel_size": "tp_size tp num_gpus gpus num_shard tensor_split",
    "pipeline_parallel_size": "pp_size pp",
    "enable_expert_parallel": "expert_parallel ep_size ep enable_ep_moe",
    "kv_roles": "kv_transfer_config kv_connector disaggregation_mode disaggregation",
    "device": "n_gpu_layers gpu_layers gpu ngl use_gpu cpu",
    "cpu_experts": "n_cpu_moe cpu_moe ncmoe cmoe override_tensor ot",
    "gpu_memory_utilization": "mem_fraction_static gpu_memory_fraction cuda_memory_fraction"
    " cache_max_entry_count",
    "kv_memory_fraction": "memory_fraction cpu_memory_utilization kv_cache_memory"
    " kv_cache_memory_bytes cpu_kvcache_space",
    "kv_cache_dtype": "cache_type_k cache_type_v kv_cache_type ctk ctv",
    "model": "model_path model_id hf_repo checkpoint model_name_or_path m hf hfr",
    "served_model_name": "alias model_name name a",
    "cache_dir": "hf_home huggingface_hub_cache models_dir model_store cache_folder",
    "quantization": "quantize quant load_in_8bit load_in_4bit",
    "dtype": "torch_dtype precision data_type",
    "chat_template": "chat_template_file template prompt_template",
    "api_keys": "api_key_file keys auth keys_file",
    "host": "bind address listen ip hostname interface",
    "root_path": "api_prefix base_path path_prefix url_prefix",
    "allowed_origins": "cors cors_allow_origin cors_origins origins",
    "allowed_hosts": "trusted_hosts allowed_host server_name vhost",
    "shutdown_timeout": "timeout grace_period graceful_timeout",
    "log_level": "verbose verbosity debug quiet loglevel log_verbosity",
    "log_format": "log_json json_output json_logs",
    "access_log": "log_requests request_log log_access",
    "enable_prefix_caching": "cache_prompt prefix_caching prefix_cache enable_radix_cache"
    " cache_reuse",
    "enforce_eager": "disable_cuda_graph eager no_cuda_graph",
    "flash_attention_3": "flash_attn flash_attention fa3 use_flash_attention fa",
    "scheduling_policy": "schedule_policy policy scheduler",
    "attention_backend": "backend kernel_backend attention_impl",
    "engine_metrics_port": "metrics_port prometheus_port metrics",
    "tool_call_parser": "tool_parser function_call_parser",
    "max_request_tokens": "max_input_length max_input_tokens",
    "otlp_traces_endpoint": "otlp_endpoint tracing traces",
    "max_tokens": "n_predict predict num_predict max_new_tokens max_output_tokens length",
    "temperature": "temp",
    "system": "system_prompt system_message",
}

_BY_WORD: dict[str, list[str]] = {}
for _ours, _words in _SAME.items():
    for _word in _words.split():
        _BY_WORD.setdefault(_word, []).append(_ours)


def meant(word: str, known: Iterable[str]) -> str | None:
    """The name among `known` that `word` most likely stands for: by meaning, then by spelling.

    Dashes and underscores are alike; what comes back is spelt as in `known`.
    """
    by_name = {_plain(name): name for name in known}
    plain = _plain(word)
    for name in _BY_WORD.get(plain, ()):
        if name in by_name:
            return by_name[name]
    near = difflib.get_close_matches(plain, by_name, n=1, cutoff=0.6)
    return by_name[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
