"""Families of models, each a value in a module of its own. All of them are in `served`; `finding`
has the one of a prepared model."""
