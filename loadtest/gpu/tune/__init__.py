"""Which tile sizes are best on this machine's GPU: `python -m loadtest.gpu.tune`.

Nothing here changes `tiles.py`: tiles are part of the numbers.
"""
