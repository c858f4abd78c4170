"""Errors of grammars."""

from __future__ import annotations


class GrammarError(Exception):
    """A grammar can't be compiled, or can't go on. The message is for the client."""


class TokenRefused(GrammarError):
    """An output has a token that its grammar doesn't allow."""


class GrammarUnavailable(Exception):
    """A grammar can't be compiled now, through no fault of its own. The message is for the
    client."""
