"""A Lark grammar of the texts that a JSON string may hold, made from a grammar of texts: each
character is written as JSON writes it, always in the same way, the shortest.

llguidance's lexer knows the next byte only, and all that JSON escapes begins with a backslash. So
what may hold such a character is no terminal any more, but a rule whose terminals are single
characters, escaped or not: the parser then tells one from another.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from penstock_grammars.character_classes import SPECIAL, ClassReader, read_escape
from penstock_worker.grammar.errors import GrammarError

TERMINALS = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z_0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"\#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*([^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""Terminals that a grammar may import, as Lark's documentation of `common` describes them."""

IGNORED, START = "json_ignored", "json_start"
"""Names of rules that are added."""
_STRING = r'"(?:\\.|[^"\\\n])*"'
_TOKEN = re.compile(
    r"(?P<comment>(?://|\#)[^\n]*)"
    rf"|(?P<range>{_STRING}\s*\.\.\s*{_STRING})"
    rf"|(?P<string>{_STRING})(?P<folded>i?)"
    r"|/(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[a-z]*)"
    r"|%(?P<directive>\w+)"
    r"|(?P<definition>^[ \t]*[!?]*(?P<defined>[A-Za-z_][\w\-]*)(?:\[[^\]\n]*\]|\.\d+)?\s*:(?!:))"
    r"|(?P<name>[A-Za-z_][\w\-]*)"
    r"|(?P<foreign>~(?!\s*\d)|@|::|<[^<>\s]+>)"
    r"|(?P<arrow>->\s*\w+)"
    r"|(?P<other>\s+|.)",
    re.DOTALL | re.MULTILINE,
)
_IMPORT = re.compile(
    r"^[ \t]*%import[ \t]+(?:common[ \t]*(?:\.[ \t]*(?P<one>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?"
    r"|\((?P<several>[\w, \t]*)\)))?",
    re.MULTILINE,
)
_PLAIN = r'[^"\\\x00-\x1f]'
"""Characters that a JSON string holds as they are, as a class."""
_LETTERS = {'"': '"', "\\": r"\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
"""Letters after the backslash of characters that have an escape of one letter, in a class."""


@dataclass(slots=True)
class _Token:
    """text: as it is to be written.  special: whether it may hold a character that JSON escapes.
    terminal: the terminal in whose definition it stands.  is_terminal: whether it is one itself."""

    text: str
    kind: str
    special: bool = False
    terminal: str = ""
    is_terminal: bool = False


def lark_in_json(text: str) -> str:
    """Returns the grammar of what is between a JSON string's quotes. text: a grammar in
    llguidance's dialect of Lark, with a rule `start`. Raises GrammarError for what can't be
    expressed."""
    tokens = _read(_with_imports(text))
    special = _special_terminals(tokens)
    ignored = _take_ignored(tokens, special)
    written = [_written_token(token, special, ignoring=bool(ignored)) for token in tokens]
    if ignored:
        written.append(f"\nstart: {IGNORED} {START}\n{IGNORED}: ({' | '.join(ignored)})*\n")
    return f"%llguidance {{}}\n{''.join(written)}\n"


def _with_imports(text: str) -> str:
    """The grammar with definitions in place of imports."""
    imported: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        names = [found["one"]] if found["one"] else re.findall(r"\w+", found["several"] or "")
        if not names:
            raise GrammarError(
                "a tool's lark grammar can import common terminals alone: %import common.NAME, "
                "%import common.NAME -> OTHER, or %import common (NAME, …)"
            )
        for name in names:
            if name not in TERMINALS:
                raise GrammarError(f"there is no common.{name}; allowed: {', '.join(TERMINALS)}")
            imported[found["alias"] or name] = name
        return ""

    rest = _IMPORT.sub(take, text)
    return "\n".join([rest, *(f"{name}: /{TERMINALS[kind]}/" for name, kind in imported.items())])


def _read(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    terminal = ""
    for found in _TOKEN.finditer(text):
        token = _Token(found[0], "other", terminal=terminal)
        if found["string"] is not None:
            written = _string(_text(found["string"]), folded=bool(found["folded"]))
            token = _Token(written or found[0], "string", written is not None, terminal, True)
        elif found["range"] is not None:
            written = _range(found[0])
            token = _Token(written or found[0], "range", written is not None, terminal, True)
        elif found["regex"] is not None:
            written = _regex(found["regex"], found["flags"])
            token = _Token(written or found[0], "regex", written is not None, terminal, True)
        elif found["definition"] is not None:
            name = found["defined"]
            terminal = name if name.upper() == name else ""
            token = _Token(found[0], "definition", terminal=name)
        elif found["name"] is not None:
            is_terminal = found[0].upper() == found[0]
            token = _Token(found[0], "name", terminal=terminal, is_terminal=is_terminal)
        elif found["directive"] is not None:
            if found["directive"] != "ignore":
                _refuse(found[0], "%import common, %ignore")
            terminal = ""
            token.kind = "ignore"
        elif found["foreign"] is not None:
            _refuse(found[0], "rules, terminals, strings and expressions")
        elif found["comment"] is not None:
            continue
        tokens.append(token)
    return tokens


def _special_terminals(tokens: list[_Token]) -> set[str]:
    """Terminals that may hold a character that JSON escapes."""
    special: set[str] = set()
    while True:
        found = {
            token.terminal
            for token in tokens
            if token.kind != "definition"
            and token.terminal
            and (token.special or (token.kind == "name" and token.text in special))
        }
        if found <= special:
            break
        special |= found
    for token in tokens:
        if token.text == "&" and token.terminal in special:
            _refuse("&", "that of terminals without quotes, backslashes and control characters")
    return special


def _take_ignored(tokens: list[_Token], special: set[str]) -> list[str]:
    """What is ignored, where a terminal can't say it, taken out of the tokens."""
    places: list[tuple[int, int]] = []
    for at, token in enumerate(tokens):
        if token.kind == "ignore":
            end = at + 1
            while end < len(tokens) and tokens[end].kind not in ("definition", "ignore"):
                end += 1
            places.append((at, end))
    whole = [token for begin, end in places for token in tokens[begin:end]]
    if not any(token.special or token.text in special for token in whole):
        return []
    ignored = []
    for begin, end in reversed(places):
        body = tokens[begin + 1 : end]
        del tokens[begin:end]
        ignored.append("".join(_written_token(each, special, ignoring=False) for each in body))
    return [f"({' '.join(each.split())})" for each in ignored]


def _written_token(token: _Token, special: set[str], *, ignoring: bool) -> str:
    """ignoring: whether ignored tokens may follow a terminal of a rule."""
    text = token.text
    name = token.terminal if token.kind == "definition" else text
    if token.kind in ("name", "definition"):
        if name in special:
            text = text.replace(name, _rule_of(name))
        elif name == "start" and ignoring:
            text = text.replace(name, START)
    return f"({text} {IGNORED})" if ignoring and token.is_terminal and not token.terminal else text


def _rule_of(terminal: str) -> str:
    return f"json_{terminal.lower()}"


def _refuse(what: str, allowed: str) -> None:
    raise GrammarError(f"a tool's lark grammar can't hold {what[:40]!r}; allowed: {allowed}")


def _text(string: str) -> str:
    """What a Lark string says."""
    try:
        said = json.loads(re.sub(r"(?<!\\)((?:\\\\)*)\\x", r"\1\\u00", string), strict=False)
    except ValueError as error:
        raise GrammarError(f"a lark grammar's string {string[:60]} is broken: {error}") from None
    return str(said)


def _string(text: str, *, folded: bool) -> str | None:
    """The expression of a text; None: it is the same in JSON."""
    if not any(each in SPECIAL for each in text):
        return None
    pieces = re.split(r'(["\\\x00-\x1f])', text)
    flag = "i" if folded else ""
    written = [
        _quoted(_escape(each)) if each in SPECIAL else f"{_quoted(each)}{flag}"
        for each in pieces
        if each
    ]
    return f"({' '.join(written)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escape(character: str) -> str:
    """How JSON writes it."""
    return _quoted(character)[1:-1]


def _range(text: str) -> str | None:
    """The expression of a range; None: it is the same in JSON."""
    first, last = (_text(each) for each in re.findall(_STRING, text))
    if len(first) != 1 or len(last) != 1 or first > last:
        raise GrammarError(f"{text[:40]} of a lark grammar is no range of characters")
    hit = frozenset(each for each in SPECIAL if first <= each <= last)
    members = "[{}-{}]".format(*(rf"\u{{{ord(each):x}}}" for each in (first, last)))
    return f"/{_class(members, hit)}/" if hit else None


def _class(text: str, hit: frozenset[str]) -> str:
    """One character of a class. hit: those of SPECIAL that the class has, at least one."""
    ways = []
    letters = "".join(letter for each, letter in _LETTERS.items() if each in hit)
    if letters:
        ways.append(rf"\\[{letters}]")
    for high in "01":
        low = "".join(
            f"{ord(each) & 15:x}"
            for each in sorted(hit)
            if each not in _LETTERS and f"{ord(each) >> 4:x}" == high
        )
        if low:
            ways.append(rf"\\u00{high}[{low}]")
    return f"(?:[{text}&&{_PLAIN}]|(?-i:{'|'.join(ways)}))"


def _regex(body: str, flags: str) -> str | None:
    """The expression of a regular expression; None: it is the same in JSON."""
    if "x" in flags:
        raise GrammarError("an expression of a tool's lark grammar can't have the flag x")
    writer = _RegexWriter(body, folded="i" in flags, dotall="s" in flags)
    written = writer.run()
    return f"({written})" if writer.special else None


class _RegexWriter:
    """Writes a regular expression as an expression of a rule.

    folded, dotall: whether case doesn't count, and whether a dot matches a line break.
    special: whether it may hold a character that JSON escapes.
    """

    _GROUP = re.compile(r"\?([a-zA-Z\-]*)([:)])|\?P?<\w+>")
    _TIMES = re.compile(r"([*+?]|\{\d*,?\d*\})\??")

    def __init__(self, body: str, *, folded: bool, dotall: bool) -> None:
        self._body, self._at = body, 0
        self._flags = [(folded, dotall)]
        self._run: list[str] = []
        """Characters and classes that stand side by side."""
        self._pieces: list[str] = []
        self.special = False

    def run(self) -> str:
        while self._at < len(self._body):
            self._next()
        self._close()
        return " ".join(self._pieces)

    def _next(self) -> None:
        body, at = self._body, self._at
        self._at = at + 1
        match body[at]:
            case "(":
                self._group()
            case ")":
                self._close()
                self._pieces.append(")")
                if len(self._flags) > 1:
                    self._flags.pop()
                self._repeat()
            case "|":
                self._close()
                self._pieces.append("|")
            case "^" if at == 0:
                pass
            case "$" if self._at == len(body):
                pass
            case "^" | "$":
                _refuse(body[at], "^ and $ at an expression's ends, where they say nothing")
            case ".":
                dotall = self._flags[-1][1]
                hit = SPECIAL if dotall else SPECIAL - {"\n"}
                self._atom(r"[\s\S]" if dotall else r"[^\n]", hit)
            case "[":
                reader = ClassReader(body, at)
                hit = reader.read()
                self._at = reader.at
                self._atom(body[at : self._at], hit)
            case "\\":
                read, self._at = read_escape(body, at)
                text = body[at : self._at]
                if isinstance(read, str):
                    self._character(read, text)
                else:
                    self._atom(f"[{text}]" if read else text, read or frozenset())
            case character:
                self._character(character, character)

    def _character(self, character: str, text: str) -> None:
        if character not in SPECIAL:
            self._atom(text, frozenset())
            return
        self.special = True
        self._flush()
        self._pieces.append(_quoted(_escape(character)))
        self._repeat()

    def _atom(self, text: str, hit: frozenset[str]) -> None:
        """One character. hit: those of SPECIAL that it may be."""
        times = self._TIMES.match(self._body, self._at)
        if hit:
            self.special = True
        if hit or times:
            self._flush()
        self._run.append(_class(text, hit) if hit else text)
        if hit or times:
            self._flush()
        self._repeat()

    def _repeat(self) -> None:
        """How often what was written last may stand there."""
        if (times := self._TIMES.match(self._body, self._at)) is not None:
            self._at = times.end()
            self._pieces[-1] += times[1]

    def _flush(self) -> None:
        if self._run:
            self._pieces.append(f"/{''.join(self._run)}/{'i' if self._flags[-1][0] else ''}")
            self._run = []

    def _close(self) -> None:
        """Ends an alternative, which may be empty."""
        self._flush()
        if not self._pieces or self._pieces[-1] in ("(", "|"):
            self._pieces.append('""')

    def _group(self) -> None:
        """The beginning of a group, or flags."""
        self._flush()
        folded, dotall = self._flags[-1]
        found = self._GROUP.match(self._body, self._at)
        self._at = self._at if found is None else found.end()
        if found is not None and found[1]:
            on, _, off = found[1].partition("-")
            if not set(on + off) <= set("imsu"):
                raise GrammarError(f"an expression of a tool's lark grammar can't have ?{found[1]}")
            folded = "i" in on or (folded and "i" not in off)
            dotall = "s" in on or (dotall and "s" not in off)
        if found is not None and found[2] == ")":
            self._flags[-1] = (folded, dotall)
            return
        self._flags.append((folded, dotall))
        self._pieces.append("(")
