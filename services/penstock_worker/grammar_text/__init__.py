"""A client's grammar before it is compiled in the worker: what may be said of it without a model.

Nothing here imports torch, directly or otherwise: the process that compiles each grammar first is
to be small and quick to start.
"""
