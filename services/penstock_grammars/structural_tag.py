"""Structural tags: free text in which tags have contents of a certain form.

Both of vLLM's shapes: {structures, triggers}, and {format} with the kinds of xgrammar's structural
tags.  They become a grammar in llguidance's dialect of Lark.  A special token's text stands for the
token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from penstock.protocol.common import Grammar
from penstock_grammars.free_text import (
    ANYTHING,
    FreeText,
    SpecialTokens,
    lazy,
    quoted,
    slashed,
)
from penstock_grammars.lark_in_json import lark_in_json
from penstock_worker.grammar.errors import GrammarError

MAX_TAGS = 4096
_LONG = re.compile(r"[*+]|\{(?:\d+,)?(?:\}|\d{2,}\})")
"""A repetition of ten times or more."""
TEXT = r"TEXT: /(.|\n)*/"


def to_grammar(
    tag: Any,
    special: Mapping[str, int],
    schema_text: Callable[[Any], str],
    lark_of: Callable[[str], str],
) -> str:
    """llguidance's text for it.  special: ids of special tokens by text.  schema_text, lark_of: how
    the library is given a JSON schema and a grammar.  Raises GrammarError."""
    writer = _Writer(special, schema_text, lark_of)
    try:
        root = writer.format(_format_of(tag))
    except RecursionError:
        raise GrammarError("structural_tag is nested too deeply") from None
    lark = "\n".join(["%llguidance {}", f"start: {root}", TEXT, *writer.rules])
    if not writer.grammars:
        return lark
    return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *writer.grammars]})


def parts_of(definition: Grammar) -> Iterator[tuple[str, Grammar]]:
    """JSON schemas that a structural tag holds, and grammars of texts in JSON, each with the place
    that its complaint names. Such a grammar comes as it was given, then as it is compiled."""
    nodes = [("", json.loads(definition.text))]
    while nodes:
        place, node = nodes.pop()
        if isinstance(node, list):
            nodes += [(place, each) for each in reversed(node)]
        if not isinstance(node, dict):
            continue
        place = str(node.get("place") or place)
        kind = node.get("type")
        if kind == "lark" and isinstance(node.get("grammar"), str):
            yield place, Grammar("lark", node["grammar"])
            yield place, Grammar("structural_tag", json.dumps({"format": node}))
        elif kind != "json_schema":
            nodes += [(place, each) for each in reversed(node.values())]
        elif isinstance(node.get("json_schema"), (dict, bool)):
            yield place, Grammar("json_schema", json.dumps(node["json_schema"]))


def holds_only_json(definition: Grammar) -> bool:
    """Whether there are JSON schemas in a structural tag, and nothing else that could want a long
    row of digits: no grammar, and no expression that repeats without a bound or often."""
    kinds: set[str] = set()
    nodes = [json.loads(definition.text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            kind = node.get("type")
            kinds.add(str(kind))
            if kind == "regex" and _LONG.search(str(node.get("pattern"))):
                return False
            nodes += [] if kind == "json_schema" else node.values()
    return "json_schema" in kinds and not kinds & {"grammar", "lark"}


def _format_of(tag: Any) -> Any:
    if not isinstance(tag, dict):
        _refuse("structural_tag", "must be an object")
    if "format" in tag:
        return tag["format"]
    structures = tag.get("structures")
    if not isinstance(structures, list) or not structures:
        _refuse("structural_tag", "needs format, or structures and triggers")
    tags = [
        {
            "begin": _get(each, "begin", str, "structures"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": each.get("end", ""),
        }
        for each in structures
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """rules: of the Lark grammar so far.  grammars: others that it refers to."""

    def __init__(
        self,
        special: Mapping[str, int],
        schema_text: Callable[[Any], str],
        lark_of: Callable[[str], str],
    ) -> None:
        self._schema_text = schema_text
        self._lark_of = lark_of
        self.rules: list[str] = []
        self._names: dict[tuple[str, str], str] = {}
        """Names of these rules, by what stands in them."""
        self.grammars: list[dict[str, Any]] = []
        self._special = SpecialTokens(special)
        self._literal = self._special.literal
        self._tags = 0
        self._shared: list[str] = []
        """Rules that formats name by their index."""

    def format(self, node: Any) -> str:
        """An expression for it."""
        kind = _get(node, "type", str, "format")
        match kind:
            case "const_string":
                return self._literal(_get(node, "value", str, kind))
            case "json_schema":
                schema = node.get("json_schema")
                if not isinstance(schema, (dict, bool)):
                    _refuse(kind, "needs json_schema, an object")
                if node.get("style") not in (None, "json"):
                    _refuse(kind, "has a style that is not supported; allowed: json")
                return self._rule(f"%json {self._schema_text(schema)}")
            case "regex":
                return self._rule(f"%regex_ {_get(node, 'pattern', str, kind)}")
            case "grammar":
                return self._grammar(self._lark_of(_get(node, "grammar", str, kind)))
            case "lark":  # Ours alone: a text within a JSON string (see penstock.parsing.nodes).
                return self._grammar(lark_in_json(_get(node, "grammar", str, kind)))
            case "any_text":
                return "TEXT"
            case "sequence":
                return self._rule(" ".join(map(self.format, self._elements(node, kind))))
            case "or":
                return self._rule(" | ".join(map(self.format, self._elements(node, kind))))
            case "tag":
                return self._tag(node)
            case "triggered_tags":
                return self._triggered(node)
            case "tags_with_separator":
                return self._separated(node)
            case "text_with_tags":
                return self._with_tags(node)
            case "members":
                return self._members(node)
            case "shared":
                index = _get(node, "index", int, kind)
                if not 0 <= index < len(self._shared):
                    _refuse(kind, f"has the index {index}, and there are {len(self._shared)}")
                return self._shared[index]
        _refuse("format", f"has the type {kind[:50]!r}, which is not supported")

    def _elements(self, node: Any, kind: str) -> list[Any]:
        elements = _get(node, "elements", list, kind)
        if not elements:
            _refuse(kind, "needs elements, at least one")
        return elements

    def _tag(self, node: Any, already: str = "") -> str:
        """already: how much of its beginning has been written."""
        self._tags += 1
        if self._tags > MAX_TAGS:
            _refuse("structural_tag", f"holds more than {MAX_TAGS} tags")
        begin = _get(node, "begin", str, "tag").removeprefix(already)
        end = node.get("end", "")
        if isinstance(end, list) and len(end) == 1:
            end = end[0]
        if not isinstance(end, str):
            _refuse("tag", "needs end, a string")
        content = node.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            text = self._bounded(content) if "without" in content else "TEXT"
            return self._rule(f"{self._literal(begin)} {self._until(end, text)}")
        return self._rule(f"{self._literal(begin)} {self.format(content)} {self._literal(end)}")

    def _by_trigger(self, node: Any, kind: str) -> dict[str, list[str]]:
        """What follows each trigger."""
        triggers = _get(node, "triggers", list, kind)
        if not triggers or not all(isinstance(t, str) and t for t in triggers):
            _refuse(kind, "needs triggers, strings that aren't empty")
        by_trigger: dict[str, list[str]] = {}
        for tag in _get(node, "tags", list, kind):
            begin = _get(tag, "begin", str, "tag")
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                _refuse(kind, f"has no trigger for a tag that begins {begin[:50]!r}")
            by_trigger.setdefault(trigger, []).append(self._tag(tag, trigger))
        if not by_trigger:
            _refuse(kind, "needs tags, at least one")
        return by_trigger

    def _triggered(self, node: Any) -> str:
        by_trigger = self._by_trigger(node, "triggered_tags")
        parts = [
            f"{self._until(trigger)} ({' | '.join(tags)})" for trigger, tags in by_trigger.items()
        ]
        some = self._rule(" | ".join(parts))
        least = bool(node.get("at_least_one"))
        if node.get("stop_after_first"):
            return self._rule(some if least else f"{some} | TEXT")
        return self._rule(f"{some}{'+' if least else '*'} TEXT")

    def _separated(self, node: Any) -> str:
        tags = " | ".join(self._tag(t) for t in _get(node, "tags", list, "tags_with_separator"))
        if not tags:
            _refuse("tags_with_separator", "needs tags, at least one")
        one = self._rule(tags)
        if not node.get("stop_after_first"):
            separator = self._literal(_get(node, "separator", str, "tags_with_separator"))
            one = self._rule(f"{one} ({separator} {one})*")
        return one if node.get("at_least_one") else self._rule(f"{one}?")

    def _grammar(self, text: str) -> str:
        name = f"grammar{len(self.grammars)}"
        self.grammars.append({"name": name, "lark_grammar": text})
        return f"@{name}"

    def _with_tags(self, node: Any) -> str:
        """Free text in which some marks begin tags (see penstock.parsing.held_calls)."""
        starts, spelled = _list(node, "starts"), _list(node, "spelled")
        thoughts = node.get("thoughts")
        self._shared = []
        for each in _list(node, "shared"):
            self._shared.append(self.format(each))
        begin = _get(thoughts, "begin", str, "thoughts") if thoughts else ""
        beginnings = [_get(start, "pattern", str, "starts") for start in starts]
        opening = rf"\s{{0,8}}{re.escape(begin)}"
        by_trigger = self._by_trigger(node, "text_with_tags")
        text = FreeText(
            self._special,
            self._rule,
            _get(node, "triggers", list, "text_with_tags"),
            spelled,
            [*beginnings, *([opening] if begin else [])],
        )
        tags = " | ".join(
            f"{text.found[trigger]} ({' | '.join(tags)})" for trigger, tags in by_trigger.items()
        )
        last = bool(node.get("last"))
        more = self._rule(f"{text.piece}* ({tags})?" if last else f"({text.piece} | {tags})*")
        behind = "" if last else more
        first = [f"{text.head} {more}", f"({tags}) {behind}"]
        name = f"answer{len(self.rules)}"
        again = bool(node.get("again")) and not last
        for start, pattern in zip(starts, beginnings, strict=True):
            begun = self._rule(lazy(pattern), "[lazy]")
            first.append(f"{begun} {self.format(start.get('content'))} {name if again else behind}")
        answer = f'{" | ".join(first)} | ""'
        if again:  # It names itself.
            self.rules.append(f"{name}: {answer}")
        answer = name if again else self._rule(answer)
        if not thoughts:
            return answer
        end = _get(thoughts, "end", str, "thoughts")
        inner = FreeText(self._special, self._rule, [end], spelled)
        thinking = f"{inner.piece}* {inner.found[end]} {answer}"
        if not begin:
            return self._rule(thinking)
        begun = self._rule(lazy(opening), "[lazy]")
        if self._special.has(begin):
            space = self._rule(r"/\s{0,8}/", "terminal")
            begun = f"({space} {self._literal(begin)} | {begun})"
        return self._rule(f"{begun} {thinking} | {answer}")

    def _members(self, node: Any) -> str:
        """A rule for the members that are required and any of the others, in their order, with what
        stands between them: a kind that is ours alone."""
        separator = self._literal(_get(node, "separator", str, "members"))
        first = behind = self._rule('""')
        for member in reversed(_list(node, "members")):
            begin = self._literal(_get(member, "begin", str, "members"))
            content = f"{begin} {self.format(member.get('content'))}"
            if member.get("required"):
                first = self._rule(f"{content} {behind}")
                behind = self._rule(f"{separator} {content} {behind}")
            else:
                first = self._rule(f"{content} {behind} | {first}")
                behind = self._rule(f"({separator} {content})? {behind}")
        return first

    def _bounded(self, node: Any) -> str:
        """Text of certain lengths without a mark (see penstock.parsing.nodes)."""
        low, high = (
            _get({"min_length": 0, "max_length": -1, **node}, name, int, "any_text")
            for name in ("min_length", "max_length")
        )
        mark = re.escape(_get(node, "without", str, "any_text"))
        end = "" if high < 0 else high
        body = f"{lazy(f'{ANYTHING}{{{low},{end}}}')} & ~{lazy(f'{ANYTHING}*{mark}{ANYTHING}*')}"
        return self._rule(body, "terminal")

    def _until(self, end: str, text: str = "TEXT") -> str:
        """Free text up to, and with, the first `end`. text: its terminal."""
        if self._special.has(end):
            return self._rule(f"{text} {self._literal(end)}")
        return self._rule(f"{text} {quoted(end)}", "[lazy]")

    def _rule(self, body: str, options: str = "") -> str:
        """options: "terminal", or what stands after the rule's name."""
        if body.startswith("%regex_ "):
            body, options = f"/{slashed(body.removeprefix('%regex_ '))}/", "terminal"
        if (name := self._names.get((body, options))) is not None:
            return name
        name = f"r{len(self.rules)}"
        if options == "terminal":
            name = name.upper()
        self._names[body, options] = name
        options = options.removeprefix("terminal")
        self.rules.append(f"{name}{options}: {body}")
        return name


def _get(node: Any, name: str, kind: type, where: str) -> Any:
    value = node.get(name) if isinstance(node, dict) else None
    if not isinstance(value, kind):
        _refuse(where, f"needs {name}, {_KINDS[kind]}")
    return value


_KINDS = {list: "a list", str: "a string", int: "a number"}


def _list(node: Any, name: str) -> list[Any]:
    return _get({name: [], **node}, name, list, str(node["type"]))


def _refuse(where: str, complaint: str) -> NoReturn:
    raise GrammarError(f"{where} {complaint}")
