"""KServe's inference protocol (v2), as Triton speaks it too."""
