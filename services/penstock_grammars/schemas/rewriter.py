"""The walk through a schema: each schema in it becomes one that says nothing by negation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from penstock_grammars.schemas import keywords
from penstock_grammars.schemas.disjointness import Disjointness
from penstock_grammars.schemas.features import FEATURES, Context
from penstock_grammars.schemas.keywords import Schema, Unservable
from penstock_grammars.schemas.negation import Negation
from penstock_grammars.schemas.normal_form import CONDITIONALS, normalised
from penstock_grammars.schemas.values import same
from penstock_worker.grammar.errors import GrammarError

_DEFINITIONS = "#/$defs/"
EXTENDED = "x-extended"
"""Lists, in the whole schema, references with sibling properties, which a draft before 2019-09
ignores. Authors of such schemas mean documents that have those properties."""
_LISTING = frozenset(("properties", "required", "patternProperties", "allOf", "anyOf"))


class Attempt(NamedTuple):
    """How a schema is rewritten.  leave_one_of: a `oneOf` whose branches may overlap stays as it
    is.  in_part: of what fails a keyword, a part is enough."""

    leave_one_of: bool = False
    in_part: bool = False


IN_FULL = Attempt()


def rewritten(
    document: Any, impossible: Callable[[Any], bool], attempt: Attempt = IN_FULL
) -> Schema:
    """What admits the same documents, or some of them, in keywords that llguidance serves exactly.

    impossible: whether llguidance says of a rewritten schema that it has no document.
    Raises GrammarError, which says where, and RecursionError.
    """
    if not isinstance(document, dict):
        return _whole(document)
    return _Rewriter(document, impossible, attempt).whole(document)


def _whole(document: Any) -> bool:
    if not isinstance(document, bool):
        raise GrammarError(f"a schema must be an object or a boolean, not {_name(document)}")
    return document


class _Rewriter:
    def __init__(
        self, document: dict[str, Any], impossible: Callable[[Any], bool], attempt: Attempt
    ) -> None:
        self._draft = keywords.draft_of(document)
        self._references = References(document, self._draft)
        self._definitions = _Definitions(self._definition)
        self._extended: set[str] = set()
        self._impossible = impossible
        negation = Negation(self._definitions, in_part=attempt.in_part)
        disjointness = Disjointness(self._definitions, self._is_impossible)
        self._context = Context(
            self._definitions, negation, disjointness, FEATURES, attempt.leave_one_of
        )

    def whole(self, document: dict[str, Any]) -> Schema:
        made = self._schema(document, self._references.base(document, ""), "")
        definitions = self._definitions.complete()
        if isinstance(made, dict) and definitions:
            made = made | {"$defs": definitions}
        if isinstance(made, dict) and self._extended:
            made = made | {EXTENDED: sorted(self._extended)}
        return made

    def _is_impossible(self, schema: dict[str, Any]) -> bool:
        return self._impossible(schema | {"$defs": self._definitions.known()})

    def _definition(self, reference: str, target: Any, base: str) -> Schema:
        return self._schema(target, base, reference)

    def _schema(self, raw: Any, base: str, place: str) -> Schema:
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise GrammarError(
                f"at {place or '/'}: a schema must be an object or a boolean, not {_name(raw)}"
            )
        base = self._references.base(raw, base)
        try:
            node = normalised(raw, self._draft)
            made: dict[str, Any] = {}
            for name, value in node.items():
                made[name] = self._keyword(name, value, base, f"{place}/{name}")
            if self._draft <= 7 and raw.keys() & _LISTING and isinstance(made.get("$ref"), str):
                self._extended.add(made["$ref"])
            return _conjoined(made, self._context)
        except Unservable as error:
            raise GrammarError(f"at {place or '/'}: {error}") from None

    def _keyword(self, name: str, value: Any, base: str, place: str) -> Any:
        if name == "$ref":
            target, base = self._references.find(value, base)
            return self._definitions.reference(target, base, str(value))
        if name in keywords.SINGLE:
            return self._schema(value, base, place)
        if name in keywords.LISTS:
            return [self._schema(each, base, f"{place}/{at}") for at, each in enumerate(value)]
        if name in keywords.MAPS:
            return {key: self._schema(each, base, f"{place}/{key}") for key, each in value.items()}
        if name == CONDITIONALS:
            at = place.removesuffix(f"/{name}")
            return [
                {key: self._schema(each, base, f"{at}{part}/{key}") for key, each in said.items()}
                for part, said in value.items()
            ]
        if name == "dependencies":
            return {
                key: each if isinstance(each, list) else self._schema(each, base, f"{place}/{key}")
                for key, each in value.items()
            }
        return value


def _conjoined(made: dict[str, Any], context: Context) -> Schema:
    """Returns the schema with what its features say instead of their keywords."""
    if made.get("$ref") is False:
        return False
    out: dict[str, Any] = {}
    more: list[dict[str, Any]] = []
    done: set[str] = set()
    for name, value in made.items():
        if name in done or (value is True and name == "$ref"):
            continue
        feature = FEATURES.get(name)
        if feature is None:
            out[name] = value
            continue
        done |= set(feature.keywords)
        for said in feature.instead(made, context):
            if said is False:
                return False
            if not isinstance(said, dict):
                continue
            if keywords.OPPOSITE in said or keywords.UNIQUE in said:
                more.append(said)
            elif said.keys() == {"anyOf"} and "anyOf" not in made and "anyOf" not in out:
                out["anyOf"] = said["anyOf"]
            elif _independent(said, made, out):
                out |= said
            elif said:
                more.append(said)
    if "allOf" in out:
        out["allOf"] = [part for part in out["allOf"] if part is not True]
    if more:
        out["allOf"] = [*out.get("allOf", ()), *more]
    if not out.get("allOf", True):
        del out["allOf"]
    return out["allOf"][0] if out.keys() == {"allOf"} and len(out["allOf"]) == 1 else out


_ABOUT_REST = (
    frozenset(("properties", "patternProperties", "additionalProperties")),
    frozenset(("prefixItems", "items")),
)
"""Keywords that mean something else with one another."""


def _independent(said: dict[str, Any], *nodes: dict[str, Any]) -> bool:
    """Whether its keywords can be siblings of the others."""
    for node in nodes:
        if not all(same(node[name], said[name]) for name in said.keys() & node.keys()):
            return False
        if any(said.keys() & group and node.keys() & group for group in _ABOUT_REST):
            return False
    return True


class _Definitions(Mapping[str, Any]):
    """What references refer to, rewritten when it is asked for. One that is being rewritten isn't
    there yet."""

    def __init__(self, rewrite: Callable[[str, Any, str], Schema]) -> None:
        self._rewrite = rewrite
        self._names: dict[int, str] = {}
        self._targets: dict[str, tuple[str, Any, str]] = {}
        self._done: dict[str, Schema] = {}
        self._begun: set[str] = set()

    def reference(self, target: Any, base: str, text: str) -> Any:
        """What `$ref` is to say; true or false where that is what it refers to."""
        if isinstance(target, bool):
            return target
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"{_DEFINITIONS}{len(self._names)}"
            self._targets[name] = (text, target, base)
        return name

    def complete(self) -> dict[str, Schema]:
        while self._begun != self._targets.keys():
            for name in list(self._targets):
                self._ensure(name)
        return self.known()

    def known(self) -> dict[str, Schema]:
        return {name.removeprefix(_DEFINITIONS): schema for name, schema in self._done.items()}

    def _ensure(self, name: str) -> None:
        if name not in self._begun:
            self._begun.add(name)
            self._done[name] = self._rewrite(*self._targets[name])

    def __getitem__(self, name: str) -> Any:
        if name in self._targets:
            self._ensure(name)
        return self._done[name]

    def __contains__(self, name: object) -> bool:
        if name in self._targets:
            self._ensure(str(name))
        return name in self._done

    def __iter__(self) -> Iterator[str]:
        return iter(self._done)

    def __len__(self) -> int:
        return len(self._done)


def _name(value: Any) -> str:
    return {list: "an array", str: "a string", type(None): "null"}.get(type(value), "a number")


_MISSING = object()


class References:
    """base: of a schema, the URI that its references are relative to."""

    def __init__(self, document: Any, draft: int) -> None:
        self._id = "id" if draft <= 4 else "$id"
        self._alone = draft <= 7  # Until then siblings of a $ref are ignored, ids too.
        self._by_uri: dict[str, Any] = {"": document}
        self._bases: dict[int, str] = {}
        self._ending: set[int] = set()
        """Schemas, by their ids, from which references lead to something."""
        self._index(document)

    def _index(self, document: Any) -> None:
        stack = [(document, "")]
        while stack:
            node, base = stack.pop()
            if not isinstance(node, dict) or id(node) in self._bases:
                continue
            base = self._within(node, base)
            self._bases[id(node)] = base
            self._by_uri.setdefault(base, node)
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(name), str):
                    self._by_uri.setdefault(f"{base}#{node[name]}", node)
            stack += [(each, base) for _, each in keywords.inner(node)]

    def _within(self, node: dict[str, Any], base: str) -> str:
        name = node.get(self._id)
        if not isinstance(name, str) or (self._alone and "$ref" in node):
            return base
        if name.startswith("#"):  # Until draft 7, a name for the place.
            self._by_uri.setdefault(base + name, node)
            return base
        uri = _joined(base, name).rstrip("#")
        self._by_uri.setdefault(uri, node)
        return uri

    def base(self, node: dict[str, Any], outer: str) -> str:
        """Returns the base of a schema that stands in one whose base is `outer`."""
        return self._bases.get(id(node), outer)

    def find(self, reference: Any, base: str) -> tuple[Any, str]:
        """(the schema, its base). Raises Unservable where the document hasn't got it, or where it
        only leads back to itself."""
        found, at = self._find(reference, base)
        self._check_end(found, at, reference, ())
        return found, at

    def _check_end(self, node: Any, base: str, reference: str, open: tuple[int, ...]) -> None:
        """Follows what is said of the same value, which must end. open: schemas on the way."""
        if not isinstance(node, dict) or id(node) in self._ending:
            return
        if id(node) in open:
            raise Unservable(
                f"$ref is {reference[:200]!r}, which only leads back to itself, and so says "
                "nothing of any value"
            )
        way = (*open, id(node))
        base = self.base(node, base)
        for name in ("allOf", "anyOf", "oneOf"):
            parts = node.get(name)
            if isinstance(parts, list) and (name == "allOf" or len(parts) == 1):
                for part in parts:
                    self._check_end(part, base, reference, way)
        if "$ref" in node:
            self._check_end(*self._find(node["$ref"], base), reference, way)
        self._ending.add(id(node))

    def _find(self, reference: Any, base: str) -> tuple[Any, str]:
        if not isinstance(reference, str):
            raise Unservable(f"$ref must be a string, not {type(reference).__name__}")
        uri, fragment = urldefrag(_joined(base, reference))
        whole = f"{uri}#{fragment}" if fragment else uri
        if whole in self._by_uri:
            return self._by_uri[whole], uri
        if uri in self._by_uri and (not fragment or fragment.startswith("/")):
            found = _follow(self._by_uri[uri], fragment)
            if found is _MISSING:  # Many write pointers from the root, whatever ids are between.
                found = _follow(self._by_uri[""], fragment)
            if found is not _MISSING:
                return found, self._bases.get(id(found), uri)
        raise Unservable(f"$ref is {reference[:200]!r}, which the schema doesn't contain")


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        raise Unservable(f"{reference[:200]!r} isn't a URI") from None


def _follow(node: Any, pointer: str) -> Any:
    for part in unquote(pointer).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif part or not isinstance(node, dict):
            return _MISSING
    return node
