"""A chart rendered as `helm template` does it: by our own renderer, and by Helm where it is, as a
program or as its SDK for Python (helm-python-sdk)."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.deploy.helm.template import Renderer, TemplateError, shown

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "penstock"
RELEASE, NAMESPACE = "prod", "llm"


class _Strict(yaml.SafeLoader):
    """Refuses a key that comes twice, of which YAML would take the last."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    if len(keys) != len(set(keys)):
        raise yaml.YAMLError(f"a key comes twice: {keys} {node.start_mark}")
    return loader.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_all(text: str) -> list[dict[str, Any]]:
    """The documents that hold something."""
    return [document for document in yaml.load_all(text, _Strict) if document]


def default_values() -> dict[str, Any]:
    """The chart's own."""
    return dict(yaml.load((CHART / "values.yaml").read_text(), _Strict))


def merged(values: Any, given: Any) -> Any:
    """Merges two sets of values as Helm does: maps key by key, everything else replaced; null takes
    a key away."""
    if not isinstance(values, dict) or not isinstance(given, dict):
        return given
    both = {**values, **{key: merged(values.get(key), value) for key, value in given.items()}}
    return {key: value for key, value in both.items() if value is not None}


def check_values(values: dict[str, Any]) -> None:
    """Raises jsonschema's ValidationError."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema, jsonschema.Draft7Validator)


def rendered(given: dict[str, Any] | None = None, release: str = RELEASE) -> list[dict[str, Any]]:
    """All objects, hooks among them. Raises TemplateError, and ValidationError for the values."""
    return copy.deepcopy(_rendered(json.dumps(given or {}), release))


@functools.cache
def _rendered(given: str, release: str) -> list[dict[str, Any]]:
    """Many tests look at the same objects, which takes a tenth of a second. given: as JSON."""
    values = merged(default_values(), json.loads(given))
    check_values(values)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    dot = {
        "Values": values,
        "Release": {"Name": release, "Namespace": NAMESPACE, "Service": "Helm"},
        "Chart": {"Name": chart["name"], "Version": chart["version"]}
        | {"AppVersion": chart["appVersion"]},
        "Files": {"Get": lambda name: (CHART / name).read_text()},
    }
    renderer = Renderer(FUNCTIONS)
    files = sorted((CHART / "templates").iterdir())
    parsed = {file.name: renderer.define(file.read_text()) for file in files}
    documents = []
    for name, nodes in parsed.items():
        text = renderer.render(nodes, dot)
        if name.endswith(".yaml"):
            documents += load_all(text)
    return documents


def notes(given: dict[str, Any] | None = None) -> str:
    """What an installation says at its end."""
    renderer = Renderer(FUNCTIONS)
    renderer.define((CHART / "templates" / "_helpers.tpl").read_text())
    nodes = renderer.define((CHART / "templates" / "NOTES.txt").read_text())
    values = merged(default_values(), given or {})
    release = {"Name": RELEASE, "Namespace": NAMESPACE}
    return renderer.render(nodes, {"Values": values, "Release": release})


def by_helm(given: dict[str, Any], folder: Path) -> list[dict[str, Any]] | None:
    """The chart's objects from Helm itself; None where there is none."""
    if importlib.util.find_spec("helm_python") is not None:
        chart = importlib.import_module("helm_python").Chart.load(str(CHART))
        files = chart.render(values=given, name=RELEASE, namespace=NAMESPACE)
        texts = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
        return [document for text in texts for document in load_all(text)]
    helm = shutil.which("helm")
    if helm is None:
        return None
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(given))
    command = [helm, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return load_all(done.stdout)


def _to_yaml(value: Any) -> str:
    if value == "":
        return '""'
    return yaml.safe_dump(value, width=10_000, allow_unicode=True).removesuffix("\n...\n").rstrip()


def _nindent(count: int, text: str) -> str:
    return "\n" + _indent(count, text)


def _indent(count: int, text: str) -> str:
    pad = " " * count
    return pad + text.replace("\n", "\n" + pad)


def _printf(form: str, *values: Any) -> str:
    for value in values:
        form = form.replace("%s", shown(value), 1)
    if "%" in form:
        raise TemplateError(f"printf: {form}")
    return form


def _required(message: str, value: Any) -> Any:
    if value in (None, ""):
        raise TemplateError(message)
    return value


def _fail(message: str) -> str:
    raise TemplateError(message)


def _dict(*items: Any) -> Mapping[str, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _overwritten(under: Any, over: Any) -> Any:
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    both = {key: _overwritten(under[key], over[key]) for key in under.keys() & over.keys()}
    return {**under, **over, **both}


def _any(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _all(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _eq(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        raise TemplateError(f"{one!r} and {other!r} can't be compared")
    return bool(one == other)


FUNCTIONS = {
    "add": lambda *values: sum(values),
    "and": _all,
    "deepCopy": copy.deepcopy,
    "default": lambda otherwise, value: value or otherwise,
    "dict": _dict,
    "div": lambda one, other: one // other,
    "eq": _eq,
    "fail": _fail,
    "first": lambda items: items[0],
    "get": lambda mapping, name: mapping.get(name, ""),
    "gt": lambda one, other: one > other,
    "has": lambda item, items: item in items,
    "indent": _indent,
    "int": int,
    "list": lambda *values: list(values),
    "mergeOverwrite": _overwritten,
    "nindent": _nindent,
    "mul": lambda one, other: one * other,
    "not": lambda value: not value,
    "omit": lambda mapping, *names: {k: v for k, v in mapping.items() if k not in names},
    "or": _any,
    "printf": _printf,
    "quote": lambda value: json.dumps(shown(value)),
    "replace": lambda old, new, text: text.replace(old, new),
    "required": _required,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "splitList": lambda mark, text: text.split(mark),
    "sub": lambda one, other: one - other,
    "ternary": lambda one, other, which: one if which else other,
    "toYaml": _to_yaml,
    "trimPrefix": lambda prefix, text: text.removeprefix(prefix),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda count, text: text[:count],
    "until": lambda count: list(range(count)),
}
