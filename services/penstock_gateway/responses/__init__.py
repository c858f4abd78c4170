"""POST /v1/responses, without memory: each request brings its whole conversation."""
