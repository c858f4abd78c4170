"""Structured output: which tokens a sequence's grammar allows next.

What compiles grammars is a package of its own, which `penstock.config.bundled` names.
"""
