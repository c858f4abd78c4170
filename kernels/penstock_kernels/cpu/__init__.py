"""CPU kernels in C++ (csrc/), in a shared library with a plain C interface."""
