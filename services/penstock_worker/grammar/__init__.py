"""Structured output: which tokens a sequence's grammar allows next."""

from __future__ import annotations

from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.interface import Compile, Compiled, Matcher
from penstock_worker.grammar_text.errors import GrammarError

__all__ = ["Compile", "Compiled", "GrammarError", "Matcher", "SlotGrammars"]
