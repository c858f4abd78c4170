"""Families of models that fewer people serve, read as those of `penstock.families` are, which says
what they have in common; in `vision` those that see, in `mmproj` their files of llama.cpp's.

A module that defines one is all that it takes: `penstock.config.bundled` names the three packages.
"""
