"""Other programs' words for our settings: who types one of them is told ours.

From llama-server, Ollama, TGI, SGLang, LMDeploy and everyday speech. Words of vLLM's that are taken
as they are don't stand here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SAME = {
    "max_model_len": "ctx_size context_length context_size context_len context n_ctx num_ctx"
    " max_context_length max_context_len max_seq_len max_sequence_length max_total_tokens"
    " max_length session_len seq_length",
    "max_num_seqs": "parallel n_parallel num_parallel max_batch_size max_concurrent_requests"
    " max_running_requests concurrency max_concurrency slots",
    "max_num_batched_tokens": "batch_size ubatch_size max_batch_prefill_tokens"
    " chunked_prefill_size max_prefill_tokens",
    "max_waiting_requests": "max_queue_size queue_size max_queued_requests",
    "threads": "n_threads num_threads cpu_threads num_thread cores cpus",
    "gateways": "workers num_workers http_workers frontends",
    "data_parallel_size": "replicas num_replicas dp_size dp engines",
    "tensor_parallel_size": "tp_size tp num_gpus gpus num_shard tensor_split",
    "pipeline_parallel_size": "pp_size pp",
    "kv_roles": "kv_transfer_config kv_connector disaggregation_mode disaggregation",
    "device": "n_gpu_layers gpu_layers gpu ngl use_gpu cpu",
    "gpu_memory_utilization": "mem_fraction_static gpu_memory_fraction cuda_memory_fraction"
    " cache_max_entry_count",
    "kv_memory_fraction": "memory_fraction cpu_memory_utilization kv_cache_memory"
    " kv_cache_memory_bytes cpu_kvcache_space",
    "kv_cache_dtype": "cache_type_k cache_type_v kv_cache_type",
    "model": "model_path model_id hf_repo checkpoint model_name_or_path",
    "served_model_name": "alias model_name name",
    "cache_dir": "hf_home huggingface_hub_cache models_dir model_store cache_folder",
    "quantization": "quantize quant load_in_8bit load_in_4bit",
    "dtype": "torch_dtype precision data_type",
    "chat_template": "chat_template_file template prompt_template",
    "api_keys": "api_key_file keys auth keys_file",
    "host": "bind address listen ip hostname interface",
    "allowed_origins": "cors cors_allow_origin cors_origins origins",
    "allowed_hosts": "trusted_hosts allowed_host server_name vhost",
    "shutdown_timeout": "timeout grace_period graceful_timeout",
    "log_level": "verbose verbosity debug quiet loglevel log_verbosity",
    "log_format": "log_json json_output json_logs",
    "access_log": "log_requests request_log log_access",
    "enable_prefix_caching": "cache_prompt prefix_caching prefix_cache enable_radix_cache"
    " cache_reuse",
    "enforce_eager": "disable_cuda_graph eager no_cuda_graph",
    "flash_attention_3": "flash_attn flash_attention fa3 use_flash_attention",
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
