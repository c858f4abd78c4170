"""`penstock quantize` beside llama.cpp's own quantisation of the same file."""
