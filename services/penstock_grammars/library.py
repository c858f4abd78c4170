"""llguidance, with our limits.

It keeps Python's lock while a token is consumed, so what one token may cost is bounded here, by
limits that depend on grammar and output alone: a sequence that meets one fails wherever it runs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from penstock.process.memory import trim_heap
from penstock.protocol.common import Grammar
from penstock.request.structured_outputs import GBNF_RULE
from penstock.request.written_numbers import read_exactly
from penstock_grammars.schemas.held_numbers import with_held_numbers
from penstock_grammars.schemas.keywords import Unservable, changed, inner
from penstock_grammars.schemas.served import served
from penstock_grammars.structural_tag import to_grammar
from penstock_worker.grammar.errors import GrammarError

MAX_ITEMS_IN_ROW = 1000
"""Ways in which the output so far may be read at once. The library's own limit is 2,000, where the
most ambiguous grammars hold the lock for 90 ms a token; 1,000 is 20 ms, and is met by a JSON schema
of some 250 optional properties in one object."""

MAX_PATTERNED = 32
"""Different texts of a schema that are tried."""

BEGINNINGS = ('{"', '"a', '"1', '"A')
"""What grammars are probed with: any one with the first, texts with a pattern with the others."""

MAX_LEXER_STATES = 50_000
"""The states that a matcher's lexer may have; each takes up to 2 kB."""


class _AddedToken(msgspec.Struct):
    content: str
    id: int


class _TokenizerFile(msgspec.Struct):
    """What is read of a tokenizer.json: of the vocabulary, no object is made for each token."""

    added_tokens: list[_AddedToken] | None = None


class Library:
    """llguidance for one tokenizer. Raises GrammarError where it can't be had.

    tokenizer: a tokenizer.json.  splits_texts: False keeps the bytes of its tokens alone, which
    takes 45 MB less where there are 150,000; only `probe` has their texts split as before.
    """

    def __init__(
        self,
        tokenizer: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        splits_texts: bool = True,
    ) -> None:
        if not eos_token_ids:
            raise GrammarError("structured output needs a model with an EOS token")
        try:
            self._library = importlib.import_module("llguidance")
            text = tokenizer.read_text("utf-8")
            kind = self._library.LLTokenizer
            # In two parts: each holds Python's lock, for a second where the vocabulary is large.
            whole = kind(text, n_vocab=vocab_size, eos_token=list(eos_token_ids), slices=[])
            self._beginnings = {each: whole.tokenize_str(each) for each in BEGINNINGS}
            if not splits_texts:
                tokens = _Tokens(whole)
                wrapped = self._library.TokenizerWrapper(tokens)
                whole = kind(wrapped, n_vocab=vocab_size, eos_token=list(eos_token_ids), slices=[])
                tokens.tokens = wrapped.tokens = []  # It has copied them.
            self._tokenizer = whole.with_slices(kind.general_slices())
        except Exception as error:
            raise GrammarError(
                f"structured output doesn't work with this model: {error}"
            ) from error
        del text, whole
        trim_heap()  # Loading takes half as much again as what is loaded.
        self._file = tokenizer
        self._limits = self._library.LLParserLimits(
            max_items_in_row=MAX_ITEMS_IN_ROW,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )

    @cached_property
    def special(self) -> dict[str, int]:
        """Ids of special tokens by text. The library never spells these out, and they are more than
        those that the file calls special: Qwen3's <think> and <tool_call> are not."""
        file = msgspec.json.decode(self._file.read_bytes(), type=_TokenizerFile)
        return {
            token.content: token.id
            for token in file.added_tokens or ()
            if self._tokenizer.is_special_token(token.id)
        }

    def source(self, definition: Grammar) -> str:
        """llguidance's text for it. Raises GrammarError."""
        return source_of(self._library, definition, self.special)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of each token; of a special one nothing."""
        for token in range(self._tokenizer.vocab_size):
            is_special = self._tokenizer.is_special_token(token)
            yield b"" if is_special else self._tokenizer.decode_bytes([token])

    def first_letter(self, text: bytes) -> int:
        """The token of a text's first byte."""
        return int(self._tokenizer.tokenize_bytes(text[:1])[0])

    def matcher(self, source: str) -> Any:
        """A new LLMatcher. Raises GrammarError."""
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(complaint(matcher))
        return matcher

    def probe(self, source: str) -> None:
        """Compiles it, and goes as far as into the first object; and, of a schema, into texts with
        a pattern. Raises GrammarError."""
        self._probe(source, BEGINNINGS[0])
        for schema in _patterned(source):
            text = self._library.LLMatcher.grammar_from_json_schema(json.dumps(schema))
            for beginning in BEGINNINGS[1:]:
                self._probe(text, beginning)

    def _probe(self, source: str, beginning: str) -> None:
        matcher = self.matcher(source)
        matcher.compute_bitmask()
        if not matcher.is_error() and matcher.try_consume_tokens(self._beginnings[beginning]):
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(complaint(matcher))


class _Tokens:
    """A vocabulary as llguidance takes one. Texts are split into single bytes."""

    bos_token_id = None

    def __init__(self, whole: Any) -> None:
        ids = range(whole.vocab_size)
        self.eos_token_id = whole.eos_token
        self.special_token_ids = [token for token in ids if whole.is_special_token(token)]
        self.tokens = [whole.decode_bytes([token]) for token in ids]
        self._bytes = {piece: token for token, piece in enumerate(self.tokens) if len(piece) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._bytes[bytes([each])] for each in text]


def _patterned(source: str) -> list[dict[str, Any]]:
    """The texts in a schema whose pattern and length are to be met at once. Some such can be
    compiled, and not followed by a single character."""
    try:
        schema = json.loads(source)["grammars"][0]["json_schema"]
    except (ValueError, LookupError, TypeError):
        return []
    found: dict[str, dict[str, Any]] = {}
    stack = [schema]
    while stack and len(found) < MAX_PATTERNED:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        if "pattern" in node and node.keys() & {"minLength", "maxLength"}:
            said = {name: node[name] for name in _OF_TEXTS if name in node}
            found[json.dumps(said)] = {"type": "string", **said}
        stack += [each for _, each in inner(node)]
    return list(found.values())


_OF_TEXTS = ("pattern", "minLength", "maxLength", "format")


def complaint(matcher: Any) -> str:
    """What a matcher says has gone wrong, for a client."""
    text = str(matcher.get_error()).split("<state>")[0].split("<non-verbose/>")[0].strip()
    return text[:MAX_MESSAGE] or "the grammar failed for an unknown reason"


# From a definition to llguidance's own text, and bounds that it has no option for.

MAX_MESSAGE = 500
"""Characters of the library's complaint that a client is shown."""


def source_of(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    """library: llguidance.  special: ids of special tokens by text.  Raises GrammarError."""
    try:
        return _source(library, definition, special)
    except ValueError as error:
        raise GrammarError(str(error)[:MAX_MESSAGE]) from error
    except RecursionError:
        raise GrammarError("it is nested too deeply (recursion limit)") from None


def _source(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    compile = library.LLMatcher
    match definition.kind:
        case "json_schema":
            text = schema_text(library, read_exactly(definition.text))
            return str(compile.grammar_from_json_schema(text))
        case "json_object":
            text = schema_text(library, {"type": "object"})
            return str(compile.grammar_from_json_schema(text))
        case "regex":
            return str(compile.grammar_from_regex(definition.text))
        case "choice":
            texts = [json.dumps(text, ensure_ascii=False) for text in _choices(definition)]
            return str(compile.grammar_from_lark("start: " + " | ".join(texts)))
        case "lark":
            return str(compile.grammar_from_lark(definition.text))
        case "gbnf":
            return str(compile.grammar_from_lark(_from_gbnf(definition.text)))
        case "structural_tag":
            tag = read_exactly(definition.text)
            part = partial(schema_text, library, followed=False)
            return to_grammar(tag, special, part, _lark_of)
    raise GrammarError(f"no such kind of grammar: {definition.kind}")


def schema_text(library: Any, schema: Any, *, followed: bool = True) -> str:
    """A JSON schema as the library serves it, with options. followed: as `served` has it.  Raises
    GrammarError."""

    def complaint(served_so_far: Any) -> str:
        try:
            held = changed(served_so_far, with_held_numbers)
        except Unservable as error:
            return str(error)
        grammar = library.LLMatcher.grammar_from_json_schema(json.dumps(held))
        return str(library.LLMatcher.validate_grammar(grammar))

    return json.dumps(served(schema, complaint, followed=followed), ensure_ascii=False)


def _choices(definition: Grammar) -> list[str]:
    choices = json.loads(definition.text)
    if not isinstance(choices, list) or not choices or not all(type(c) is str for c in choices):
        raise GrammarError("choice must be a list of at least one string")
    return choices


def _lark_of(text: str) -> str:
    return _from_gbnf(text) if GBNF_RULE.search(text) else text


def _from_gbnf(text: str) -> str:
    try:
        return str(importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark(text))
    except Exception as error:
        raise GrammarError(f"not a GBNF grammar: {error}"[:MAX_MESSAGE]) from error
