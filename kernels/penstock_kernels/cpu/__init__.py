"""CPU kernels in C++ (csrc/), behind a shared library with a plain C interface."""
