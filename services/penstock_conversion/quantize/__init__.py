"""`penstock quantize`: a model in GGUF's quantised types, in a file that llama.cpp reads."""
