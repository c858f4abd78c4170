"""What a `$ref` refers to, within the document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from penstock_worker.grammar_text.schemas import keywords
from penstock_worker.grammar_text.schemas.errors import Unservable

_MISSING = object()


class References:
    """base: of a schema, the URI that its references are relative to."""

    def __init__(self, document: Any, draft: int) -> None:
        self._id = "id" if draft <= 4 else "$id"
        self._alone = draft <= 7  # Until then nothing counts beside a $ref, no id either.
        self._by_uri: dict[str, Any] = {"": document}
        self._bases: dict[int, str] = {}
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
        """(the schema, its base). Raises Unservable where the document hasn't got it."""
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
