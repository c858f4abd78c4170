"""Whether a benchmark's scores depend on the load: lm-evaluation-harness on one server, however
many requests are in flight."""
