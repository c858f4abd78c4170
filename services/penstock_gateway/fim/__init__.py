"""Fill-in-the-middle: prompts with a suffix, and /v1/fim/completions."""
