"""Counters of the gateway, and GET /metrics, where Prometheus reads them under vLLM's names."""
