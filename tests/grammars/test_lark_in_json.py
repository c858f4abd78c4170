"""Lark grammars of texts in JSON strings: what they admit is what lark itself parses, once it is
read as JSON, however tokens are drawn."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from penstock.parsing.nodes import TextInput
from penstock.request.structured_outputs import StructuredOutputs
from penstock_grammars.character_classes import SPECIAL, ClassReader, read_escape
from penstock_grammars.child import tried
from penstock_grammars.lark_in_json import TERMINALS, lark_in_json
from penstock_grammars.library import Library
from penstock_worker.grammar.errors import GrammarError

lark = pytest.importorskip("lark", reason="an independent parser, of the extra dev")
pytestmark = pytest.mark.timeout(300)

ARITHMETIC = r"""
// Sums of products.
start: sum
?sum: product (("+" | "-") product)*
product: atom ("*" atom)~0..3   # at most four
atom: INT | NAME | "(" sum ")"
NAME: "a".."c"
%import common (INT, WS)
%ignore WS
"""
SETTINGS = r"""
start: section~1..3
section: "[" NAME "]" _NL line~0..3
line: NAME " = " (STRING | NUMBER | PATH) _NL
STRING: "\"" /([^"\\\n]|\\["\\n]){0,6}/ "\""
PATH: /[A-Z]:(\\[A-Za-z_0-9]{1,3}){1,2}/
NUMBER: /-?[0-9]{1,4}/
NAME: /[a-z_]/~1..4
_NL: "\n"
"""
PATCH = r"""
start: "*** Begin\n" file~1..2 "*** End" LF?
file: "*** File: " /.{1,8}/ LF change~1..3
change: ("+" | "-" | " ") /[^\n]{1,12}/? LF
%import common.LF
"""
SHELL = r"""
start: WORD (SPACE argument)* (PIPE WORD (SPACE argument)*)*
argument: PLAIN | QUOTED | OPTION
WORD: "Echo"i | "grep"
OPTION: "-" /[a-z]/
PLAIN: /[^\s"'|\\-][^\s"'|\\]{0,5}/
QUOTED: "'" /[^']{0,8}/ "'"
PIPE: " | "
SPACE: /[ \t]/
"""
GRAMMARS = {"arithmetic": ARITHMETIC, "settings": SETTINGS, "patch": PATCH, "shell": SHELL}
TEXTS = {
    "arithmetic": ["1 + 2*(a-12)", "(\n\t1)", "a*b*c*a", "a*b*c*a*b", "1 +", "d", ""],
    "settings": [
        '[a]\nb = "x\\"\\\\\\n"\nc = -12\nd = C:\\x\\y\n',
        '[a]\nb = "x"y"\n',
        '[a]\nb = "\\x"\n',
        "[a]\n[b_]\n",
        "[a]",
    ],
    "patch": [
        '*** Begin\n*** File: a/b.py\n-\tx = "\\n"\n+é\x01\x7f\U0001f600\n*** End',
        "*** Begin\n*** File: a\n*** End\n",
        "*** Begin\n*** File: \n+\n*** End\n",
    ],
    "shell": ["echo -n 'a\n\"b' | GREP x", "eCHO 'a\\'\t-x", "grep \\", "grep  x", "cat"],
}
EOS = 256


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Over a tokenizer of bytes."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", normalized=False)])
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(path))
    assert tokenizer.get_vocab_size() == EOS + 1
    return Library(path, EOS + 1, (EOS,))


@pytest.fixture(scope="module")
def larger(default_folder: Path) -> Library:
    """Over the default model's tokenizer."""
    return Library(default_folder / "tokenizer.json", 49_152, (2,))


def source_of(library: Library, grammar: str) -> str:
    tag = {"format": TextInput("input", grammar).node()}
    source = library.source(StructuredOutputs(structural_tag=tag).definition())
    library.probe(source)
    return source


def admits(library: Library, source: str, text: str) -> bool:
    """text: of the input."""
    matcher = library.matcher(source)
    ids = library._tokenizer.tokenize_str(json.dumps({"input": text}, ensure_ascii=False))
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def drawn(library: Library, source: str, eos: int, chance: random.Random) -> str | None:
    """What random weights write: any token that is allowed. None: it found no end."""
    matcher = library.matcher(source)
    ids: list[int] = []
    for _ in range(300):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        assert len(allowed), library._tokenizer.decode_str(ids)
        if eos in allowed:
            break
        ends = [token for token in allowed if chance.random() < 0.05]
        token = int(chance.choice(ends or list(allowed)))
        assert matcher.consume_token(token)
        ids.append(token)
    else:
        return None
    given = json.loads(library._tokenizer.decode_str(ids))
    assert list(given) == ["input"]
    return str(given["input"])


def parses(parser: Any, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


@pytest.mark.parametrize("name", GRAMMARS)
def test_it_admits_what_lark_parses(library: Library, name: str) -> None:
    parser, source = lark.Lark(GRAMMARS[name]), source_of(library, GRAMMARS[name])
    found = [admits(library, source, text) for text in TEXTS[name]]
    assert found == [parses(parser, text) for text in TEXTS[name]]
    assert {*found} == {True, False}


@pytest.mark.parametrize("name", GRAMMARS)
def test_whatever_is_drawn_parses(library: Library, larger: Library, name: str) -> None:
    """A text that was changed by a character is admitted where lark parses it."""
    parser, chance = lark.Lark(GRAMMARS[name]), random.Random(name)
    texts = []
    for made, eos in ((library, EOS), (larger, 2)):
        source = source_of(made, GRAMMARS[name])
        texts += [drawn(made, source, eos, chance) for _ in range(40)]
    whole = [text for text in texts if text is not None]
    assert len(whole) > 20
    source = source_of(library, GRAMMARS[name])
    for text in whole:
        assert parses(parser, text), text
        at = chance.randrange(len(text))
        changed = text[:at] + chance.choice('"\\\n\t aA1-') + text[at + 1 :]
        assert admits(library, source, changed) == parses(parser, changed), changed


CLASSES = [
    *(
        "[a]",
        '["]',
        r"[^\n]",
        r"[\s\S]",
        r"[\d\W]",
        r"[^\w]",
        r"[]a]",
        r"[^]\\]",
        r"[a-]",
        r"[\--/]",
    ),
    *("[[:cntrl:]]", "[[:^space:]]", r"[\x00-\x1f&&[^\t]]", r"[[ -~]--[\\]]", r"[\t~~\s]"),
    *(r"[\p{L}\p{Nd}]", r"\P{L}", r"\pP", r"[\p{Cc}]", r"[\u{9}-\u{c}]", r"[\u0022]", r"\s", r"\D"),
    *(r"[\n\r\a\f\v]", r"[!-/]", r"[[^a]&&[^\\]]", r"[^\p{White_Space}]", r"\x22", r"\\", r"\n"),
]


@pytest.mark.parametrize("text", CLASSES)
def test_a_class_has_what_the_library_finds_in_it(library: Library, text: str) -> None:
    if text.startswith("["):
        reader = ClassReader(text, 0)
        found: Any = reader.read()
        assert reader.at == len(text)
    else:
        found, end = read_escape(text, 0)
        assert end == len(text)
    source = StructuredOutputs(regex=f"(?:{text})").definition()
    made = library.source(source)
    for character in sorted(SPECIAL):
        matcher = library.matcher(made)
        ids = library._tokenizer.tokenize_str(character)
        whole = matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())
        assert whole == (character in found), repr(character)


@pytest.mark.parametrize("text", CLASSES)
def test_a_class_in_a_string_has_the_same(library: Library, text: str) -> None:
    source = source_of(library, f"start: /{text.replace('/', chr(92) + '/')}/")
    plain = library.source(StructuredOutputs(regex=f"(?:{text})").definition())
    for character in (*sorted(SPECIAL), *"aA0 -/]~", "\x7f", "é"):
        matcher = library.matcher(plain)
        ids = library._tokenizer.tokenize_str(character)
        wanted = matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())
        assert admits(library, source, character) == wanted, repr(character)


@pytest.mark.parametrize("name", TERMINALS)
def test_common_terminals_are_lark_s(library: Library, name: str) -> None:
    grammar = f"start: THIS\n%import common.{name} -> THIS"
    parser, source = lark.Lark(grammar), source_of(library, grammar)
    texts = ["1", "-1", "1.5", ".5", "1e5", "+.5E-1", "f", "F", "ab", "a_1", '"a\\"b"', '"a"b"']
    texts += [
        " ",
        "\t",
        " \n",
        "\r",
        "\n",
        "\r\n\n",
        "# a",
        "// a",
        "/* a\n* */",
        "-- a",
        "1.",
        "é",
    ]
    for text in texts:
        assert admits(library, source, text) == parses(parser, text), text


WRONG = {
    "a lookahead": (r"start: /a(?=b)/", "look-around"),
    "no start": ("begin: /a/", "start"),
    "an unknown rule": ("start: other", "other"),
    "a broken string": ('start: "a', "lexer"),
    "a negation": ("start: A\nA: ~/a/", "'~'"),
    "a schema": ("start: %json {}", "'%json'"),
    "a token": ("start: <|im_end|>", "<|im_end|>"),
    "another's rules": ("start: x\n%import .other.x", "common"),
    "an unknown terminal": ("start: X\n%import common.X", "common.X"),
    "a flag": ("start: /a b/x", "flag x"),
    "an unknown script": (r"start: /\p{Ogham}/", "p{Ogham}"),
    "a priority": ('start: A\nA.2: "a"', "priority"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_lark_grammar_is_an_error_that_names_its_place(library: Library, case: str) -> None:
    grammar, said = WRONG[case]
    tag = {"format": {**TextInput("input", grammar).node(), "place": "/<tool>/3"}}
    definition = StructuredOutputs(structural_tag=tag).definition()
    with pytest.raises(GrammarError, match=rf"^at /<tool>/3: (.|\n)*{re.escape(said)}"):
        tried(library, definition)


def test_a_long_grammar_grows_by_a_bounded_factor() -> None:
    text = "start: A\nA: /" + "." * 10_000 + "/"
    assert len(lark_in_json(text)) < 100 * len(text)
