"""A GGUF model's vision and audio towers, in a file of their own: llama.cpp's mmproj."""
