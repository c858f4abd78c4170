"""What state costs that gateways and cells share: limits in Redis, responses in PostgreSQL."""
