"""How many engine cores a load needs: the production core under a virtual clock.

`penstock simulate`, `fit-cost`, `plan` and `bench steps` are its commands; the table in
`penstock.cli.commands` names them, and nothing else of the system imports this package.
"""
