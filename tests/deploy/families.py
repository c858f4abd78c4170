"""Metric names that rules and dashboards may use. `test_prometheus.py` compares them with what the
processes really have."""

_ENGINE = """
    vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc
    vllm:num_preemptions_total vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total
    vllm:iteration_tokens_total_bucket penstock:engine_ready penstock:engine_draining
    penstock:engine_paused vllm:engine_sleep_state
    penstock:steps_total penstock:step_seconds_bucket penstock:step_part_seconds_total
    penstock:step_sequences_bucket penstock:oldest_waiting_seconds penstock:waiting_tokens
    penstock:tenant_prompt_tokens_total penstock:tenant_generation_tokens_total
    penstock:tenant_open_requests penstock:tenant_debt penstock:kv_blocks penstock:host_kv_blocks
    penstock:kv_groups
    penstock:swapped_blocks_total penstock:disk_kv_blocks_total
    penstock:requests_ended_total penstock:requests_rejected_total
    penstock:requests_resumed_total penstock:requests_handed_over_total
    penstock:audit_differences_total penstock:worker_deaths_total penstock:recovery_seconds_bucket
    penstock:frontends penstock:workers
"""
_WORKER = """
    penstock:worker_step_seconds_bucket penstock:worker_phase_seconds_total
    penstock:worker_busy_seconds_total penstock:worker_tokens_total penstock:worker_sessions_total
    penstock:worker_load_seconds penstock:worker_kv_bytes penstock:worker_late_compilations_total
    penstock:worker_disk_kv_blocks_total penstock:worker_peer_kv_blocks_total
    penstock:worker_peer_kv_faults_total
"""
_GATEWAY = """
    vllm:time_to_first_token_seconds_bucket vllm:time_to_first_token_seconds_count
    vllm:inter_token_latency_seconds_bucket vllm:e2e_request_latency_seconds_bucket
    vllm:request_prompt_tokens_bucket vllm:request_generation_tokens_bucket
    vllm:prompt_tokens_total vllm:generation_tokens_total vllm:request_success_total
    penstock:http_responses_total penstock:preparations_total penstock:engines
    penstock:gateway_open_requests
    penstock:routed_requests_total penstock:moved_requests_total penstock:key_prompt_tokens_total
    penstock:key_cached_prompt_tokens_total penstock:key_generation_tokens_total
    penstock:rate_limit_storage_seconds_bucket penstock:rate_limit_storage_failures_total
    penstock:rate_limit_fallback_active
"""
_EVERY_PROCESS = """
    process_resident_memory_bytes process_cpu_seconds_total process_open_fds
    process_start_time_seconds
"""
_HAPROXY = """
    haproxy_backend_active_servers haproxy_backend_client_aborts_total
    haproxy_backend_redispatch_warnings_total haproxy_backend_retry_warnings_total
    haproxy_backend_server_aborts_total haproxy_frontend_bytes_in_total
    haproxy_frontend_bytes_out_total haproxy_frontend_current_sessions
    haproxy_frontend_denied_connections_total haproxy_frontend_http_responses_total
    haproxy_frontend_request_errors_total haproxy_server_current_sessions
"""

ENGINE, WORKER, GATEWAY = (frozenset(names.split()) for names in (_ENGINE, _WORKER, _GATEWAY))
EVERY_PROCESS, HAPROXY = (frozenset(names.split()) for names in (_EVERY_PROCESS, _HAPROXY))
PROMETHEUS = frozenset({"up", "ALERTS"})
ALL = ENGINE | WORKER | GATEWAY | EVERY_PROCESS | HAPROXY | PROMETHEUS
