"""The families that dashboards and alerts are written against: by process, with their types."""

from __future__ import annotations

PROCESS = {
    "process_cpu_seconds": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_virtual_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_open_fds": "gauge",
}
ENGINE = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "penstock:engine_ready": "gauge",
    "penstock:engine_draining": "gauge",
    "penstock:steps": "counter",
    "penstock:step_seconds": "histogram",
    "penstock:step_part_seconds": "counter",
    "penstock:step_sequences": "histogram",
    "penstock:step_budget_tokens": "gauge",
    "penstock:oldest_waiting_seconds": "gauge",
    "penstock:waiting_tokens": "gauge",
    "penstock:tenant_prompt_tokens": "counter",
    "penstock:tenant_generation_tokens": "counter",
    "penstock:tenant_open_requests": "gauge",
    "penstock:tenant_debt": "gauge",
    "penstock:kv_blocks": "gauge",
    "penstock:host_kv_blocks": "gauge",
    "penstock:swapped_blocks": "counter",
    "penstock:requests_ended": "counter",
    "penstock:requests_rejected": "counter",
    "penstock:requests_resumed": "counter",
    "penstock:worker_deaths": "counter",
    "penstock:recovery_seconds": "histogram",
    "penstock:frontends": "gauge",
    "penstock:workers": "gauge",
}
WORKER = {
    "penstock:worker_step_seconds": "histogram",
    "penstock:worker_phase_seconds": "counter",
    "penstock:worker_busy_seconds": "counter",
    "penstock:worker_tokens": "counter",
    "penstock:worker_sessions": "counter",
    "penstock:worker_load_seconds": "gauge",
    "penstock:worker_kv_bytes": "gauge",
}
GATEWAY = {
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_success": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "penstock:http_responses": "counter",
}
LABELS = {
    ("penstock:step_part_seconds_total", "part"): {"plan", "apply", "compute", "dispatch"},
    ("penstock:kv_blocks", "state"): {"free", "used", "cached"},
    ("penstock:host_kv_blocks", "state"): {"free", "used"},
    ("penstock:swapped_blocks_total", "direction"): {"out", "in"},
    ("penstock:requests_ended_total", "end"): {"stop", "length", "abort", "timeout", "error"},
    ("penstock:requests_rejected_total", "code"): {
        "invalid",
        "overloaded",
        "unavailable",
        "limited",
    },
}
