"""vllm.Inference and vllm.Control, as vLLM has them."""
