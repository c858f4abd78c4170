"""Structured output: which tokens a sequence's grammar allows next.

interface   what a compiled grammar and a matcher are
compiler    llguidance behind that interface
grammars    compiled grammars, the slots' matchers, and the threads that work on both
mask        what is known of a slot's next token when its logits are there
"""

from __future__ import annotations

from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.interface import Compile, Compiled, Matcher
from penstock_worker.grammar_text.errors import GrammarError

__all__ = ["Compile", "Compiled", "GrammarError", "Matcher", "SlotGrammars"]
