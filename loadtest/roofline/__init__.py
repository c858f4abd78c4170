"""What the machine could do at best, and the least time that a model's work takes on it.

probe    measures memory bandwidth and the peaks of integer and bfloat16 units (probe.cpp)
cost     the bytes and multiply-adds of a GGUF model, and a piece of work's least time
`python -m loadtest.roofline` prints both.
"""
