"""Names of the floating-point types."""

from __future__ import annotations

FLOAT_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The name in weight files (GGUF and safetensors) -> the name in settings."""
