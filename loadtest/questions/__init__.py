"""Twenty plain questions through every entrance, and through llama.cpp."""
