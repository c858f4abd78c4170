"""What is counted, and GET /metrics, where Prometheus reads it under vLLM's names."""
