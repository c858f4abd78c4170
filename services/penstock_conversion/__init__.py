"""Makes models of models: in fewer bits, or with an adapter folded in.

`penstock quantize` and `merge` are its commands; the table in `penstock.cli.commands` names them,
and nothing else of the system imports this package.
"""
