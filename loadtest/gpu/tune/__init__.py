"""Which tile sizes are best on this machine's GPU: `python -m loadtest.gpu.tune`.

Nothing here changes `tiles.py`: tiles are part of the numbers.
"""

NAMES = (
    "decode-attention",
    "prefill-attention",
    "invariant-product",
    "invariant-attention",
    "weight-only",
    "fp8",
    "gguf-few",
    "gguf-many",
    "gate",
    "rms-norm",
    "sampling",
    "argmax",
)
"""The kernels whose tiles are a choice, what matters most first."""
