"""LoRA adapters: loading them concurrently with steps, and which rows of a batch have which."""
