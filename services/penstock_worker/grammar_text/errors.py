"""Errors of grammars."""

from __future__ import annotations


class GrammarError(Exception):
    """A grammar can't be compiled, or can't go on. The message is for the client."""


class GrammarUnavailable(Exception):
    """A grammar can't be compiled now, through no fault of its own. The message is for the
    client."""
