"""Whether a fact is found in a long prompt, beside llama.cpp."""
