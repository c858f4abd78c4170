"""The Jinja dialect that chat templates are written in.

Documented by the transformers library ("Writing a chat template"): blocks are trimmed, `break` and
`continue` work, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, and `generation`
blocks, which only mark text for training.  Templates run sandboxed and can't change their input;
lists that they made themselves may grow and shrink, which transformers refuses and llama.cpp's
templates do.
What a model wrote as JSON, `tojson` writes as the model did, unless the template wants a form of
its own; see `penstock.text.as_written`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.text.as_written import WrittenValue, plain, text_of

_OWN_LIST = frozenset({"append", "extend", "pop"})
"""Methods of lists that templates may call, where the list is their own. What it grows to is
bounded as all of a template's memory is."""


@cache
def _stand_in() -> tuple[str, re.Pattern[str]]:
    """What begins what stands in a JSON text for one that is put in its place, and how that is
    found. No client can know it. Each process draws its own: gateways are forks of one."""
    mark = secrets.token_hex(16)
    return mark, re.compile(rf'"{mark}(\d+)"')


class GenerationBlock(Extension):
    """`{% generation %}` is as if it weren't there: only its contents count."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """An environment that runs one template at a time."""

    _given: Any = None
    _given_lists: frozenset[int] | None = None
    _now: int | None = None

    @contextmanager
    def running(self, given: Any, now: int | None = None) -> Iterator[None]:
        """Holds what a template is given while it runs. given: its variables, of which no list can
        be changed. now: its current time, Unix, seconds; None: the clock's."""
        self._given, self._given_lists, self._now = given, None, now
        try:
            yield
        finally:
            self._given = self._given_lists = self._now = None

    def strftime_now(self, form: str) -> str:
        """The time in words, by this machine's zone, as templates ask for it."""
        now = datetime.now() if self._now is None else datetime.fromtimestamp(self._now)
        return now.strftime(form)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is not list or attr not in _OWN_LIST:
            return super().is_safe_attribute(obj, attr, value)
        if self._given_lists is None:
            self._given_lists = frozenset(_lists_in(self._given))
        return id(obj) not in self._given_lists


def make_environment() -> TemplateEnvironment:
    """A fresh environment."""
    environment = TemplateEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationBlock],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = environment.strftime_now
    return environment


def _lists_in(given: Any) -> Iterator[int]:
    """The ids of all lists in a value that was read from JSON."""
    rest = [given]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            yield id(value)
            rest += value
        elif isinstance(value, dict):
            rest += value.values()


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    own_form = ensure_ascii or indent is not None or separators is not None or sort_keys
    written = None if own_form else text_of(value)
    if written is not None:
        return written
    texts: list[str] = []

    def unknown(inner: Any) -> Any:
        """Called for what json doesn't know."""
        if not isinstance(inner, WrittenValue):
            raise TypeError(f"Object of type {type(inner).__name__} is not JSON serializable")
        if own_form:
            return plain(inner)
        texts.append(text_of(inner) or "")
        return f"{_stand_in()[0]}{len(texts) - 1}"

    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=unknown,
    )
    return _stand_in()[1].sub(lambda found: texts[int(found[1])], text) if texts else text
