"""What is counted, and GET /metrics, where Prometheus reads it under vLLM's names.

counts      everything that this gateway counts
collector   as Prometheus' families     endpoint   GET /metrics
"""
