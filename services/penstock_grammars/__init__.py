"""Compiles clients' grammars for the worker: JSON Schema, expressions, Lark, structural tags.

compiler        what the worker calls; `penstock.config.bundled` names it
compile         our side of llguidance; schemas rewrites what it doesn't know of JSON Schema
trial           compiles each grammar in another process first: fork_server, child

What that process imports is to be small and quick: nothing here imports torch.
"""
