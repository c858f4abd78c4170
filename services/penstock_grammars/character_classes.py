"""Which of the characters that JSON strings write as escapes a class of a regular expression has.

Syntax: that of Rust's regex crate.
"""

from __future__ import annotations

from penstock_worker.grammar.errors import GrammarError

SPECIAL = frozenset({'"', "\\", *map(chr, range(32))})
"""The characters that a JSON string can't hold as they are."""
_CONTROLS = SPECIAL - {'"', "\\"}
_NONE: frozenset[str] = frozenset()
_SPACE = frozenset("\t\n\v\f\r")
_LITERALS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_PERL = {"d": _NONE, "w": _NONE, "s": _SPACE}
_POSIX = {
    **dict.fromkeys(("alnum", "alpha", "digit", "lower", "upper", "word", "xdigit"), _NONE),
    "ascii": SPECIAL,
    "blank": frozenset("\t"),
    "cntrl": _CONTROLS,
    "graph": SPECIAL - _CONTROLS,
    "print": SPECIAL - _CONTROLS,
    "punct": SPECIAL - _CONTROLS,
    "space": _SPACE,
}
_CATEGORIES = {
    **dict.fromkeys(("l", "lu", "ll", "lt", "lm", "lo", "letter", "alphabetic"), _NONE),
    **dict.fromkeys(("uppercase", "lowercase", "uppercaseletter", "lowercaseletter"), _NONE),
    **dict.fromkeys(("m", "mn", "mc", "me", "mark", "n", "nd", "nl", "no", "number"), _NONE),
    **dict.fromkeys(("s", "sm", "sc", "sk", "so", "symbol", "z", "zs", "zl", "zp"), _NONE),
    **dict.fromkeys(("separator", "pc", "pd", "ps", "pe", "pi", "pf", "cf", "co"), _NONE),
    **dict.fromkeys(("latin", "greek", "cyrillic", "han", "hiragana", "katakana"), _NONE),
    **dict.fromkeys(("arabic", "hebrew", "hangul", "thai", "devanagari"), _NONE),
    **dict.fromkeys(("p", "po", "punctuation", "otherpunctuation"), SPECIAL - _CONTROLS),
    **dict.fromkeys(("c", "cc", "other", "control"), _CONTROLS),
    **dict.fromkeys(("any", "ascii", "common"), SPECIAL),
    "whitespace": _SPACE,
}
"""General categories and scripts, as UAX #44 and #24 name them."""
_DIGITS = {"x": 2, "u": 4, "U": 8}
"""Digits of an escape that has no braces."""


def read_escape(text: str, at: int) -> tuple[str | frozenset[str] | None, int]:
    """What the escape at `at` stands for, and where it ends: a character, the characters of SPECIAL
    in a class, or None, which is neither. Raises GrammarError for one that can't be read."""
    letter = text[at + 1 : at + 2]
    if letter in _LITERALS:
        return _LITERALS[letter], at + 2
    if letter in _DIGITS:
        return _code(text, at)
    if letter.lower() in _PERL and letter:
        hit = _PERL[letter.lower()]
        return (hit if letter.islower() else SPECIAL - hit), at + 2
    if letter in ("p", "P"):
        return _category(text, at)
    if letter and not letter.isalnum():
        return letter, at + 2
    return None, at + 2


def _code(text: str, at: int) -> tuple[str, int]:
    digits, end = text[at + 2 : at + 2 + _DIGITS[text[at + 1]]], at + 2 + _DIGITS[text[at + 1]]
    if digits.startswith("{"):
        closing = text.find("}", at)
        digits, end = text[at + 3 : closing], closing + 1
    try:
        return chr(int(digits, 16)), end
    except (ValueError, OverflowError):
        raise _unread(text[at : at + 12]) from None


def _category(text: str, at: int) -> tuple[frozenset[str], int]:
    name, end = text[at + 2 : at + 3], at + 3
    if name == "{":
        closing = text.find("}", at)
        name, end = text[at + 3 : closing], closing + 1
    negated = name.startswith("^") != (text[at + 1] == "P")
    key = "".join(each for each in name.lower() if each.isalnum() or each == "=")
    found = _CATEGORIES.get(key.rpartition("=")[2])
    if found is None:
        raise _unread(text[at:end][:40])
    return (SPECIAL - found if negated else found), end


def _unread(what: str) -> GrammarError:
    return GrammarError(
        f"a tool's lark grammar can't hold the expression {what!r}; allowed: characters, classes, "
        "and \\p of general categories and the most common scripts"
    )


class ClassReader:
    """Reads a class in brackets, with those in it.

    at: index of its opening bracket; after `read`, of what follows it.
    """

    def __init__(self, text: str, at: int) -> None:
        self._text, self.at = text, at

    def read(self) -> frozenset[str]:
        """Its characters in SPECIAL. Raises GrammarError."""
        self.at += 1
        negated = self._take("^")
        whole: frozenset[str] | None = None
        part, operator = set[str](), ""
        first = True
        while first or not self._take("]"):
            if self.at >= len(self._text):
                raise _unread(self._text[-40:])
            signs = self._text[self.at : self.at + 2]
            if not first and signs in ("&&", "--", "~~"):
                whole, part, operator = _joined(whole, operator, part), set(), signs
                self.at += 2
                continue
            part |= self._item()
            first = False
        found = _joined(whole, operator, part)
        return SPECIAL - found if negated else found

    def _item(self) -> frozenset[str]:
        text = self._text
        if text.startswith("[:", self.at):
            end = text.find(":]", self.at)
            name = text[self.at + 2 : end].removeprefix("^")
            if end >= 0 and name in _POSIX:
                negated = text[self.at + 2] == "^"
                self.at = end + 2
                return SPECIAL - _POSIX[name] if negated else _POSIX[name]
        if text.startswith("[", self.at):
            return self.read()
        low = self._character()
        if not isinstance(low, str):
            return low or _NONE
        behind = text[self.at + 1 : self.at + 2]
        if not text.startswith("-", self.at) or behind in ("]", "-", ""):
            return SPECIAL & {low}
        self.at += 1
        high = self._character()
        if not isinstance(high, str):
            raise _unread(text[self.at - 8 : self.at])
        return frozenset(each for each in SPECIAL if low <= each <= high)

    def _character(self) -> str | frozenset[str] | None:
        if self._text.startswith("\\", self.at):
            found, self.at = read_escape(self._text, self.at)
            return found
        self.at += 1
        return self._text[self.at - 1]

    def _take(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self.at)
        self.at += taken
        return taken


def _joined(whole: frozenset[str] | None, operator: str, part: set[str]) -> frozenset[str]:
    right = frozenset(part)
    if whole is None:
        return right
    match operator:
        case "&&":
            return whole & right
        case "--":
            return whole - right
    return whole ^ right
