"""CPU kernels in C++: a shared library with a plain C interface, and what calls it.

csrc/     the source: one file per concern, compiled once for each instruction set
library   finds and loads it, and says why where there is none
matrix    weights packed for it; products
decoder   a whole forward pass
sampler   next tokens from logits
structs   the C interface's structs
memory    aligned memory
"""
