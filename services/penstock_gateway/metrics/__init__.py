"""What is counted, and GET /metrics, where Prometheus reads it under vLLM's names.

histogram   counts by bucket       counts     everything that this gateway counts
collector   as Prometheus' families endpoint   GET /metrics
"""
