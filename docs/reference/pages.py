"""The reference's pages as text: from the configuration tree, the command line, and what a running
system says of itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs.reference.optional_metrics import residence_metrics, storage_metrics
from penstock.cli.commands import COMMANDS, Command
from penstock.cli.table import BEGIN, END
from penstock.config.flags import as_table

WRITTEN = "<!-- Made by `python -m docs.reference.generate`; edits are lost. -->\n"
UNKNOWN = (
    "Unknown fields are refused, or skipped with `--unknown-fields ignore`. In messages and their "
    "parts, and in tools, they are always skipped."
)
OWN_PROCESS = ("process_", "python_")
"""Families of prometheus_client itself, the same for every program."""


def settings_page() -> str:
    """Every flag of `penstock serve`."""
    return (
        f"# Settings\n\n{WRITTEN}\n"
        "Each setting is a flag of `penstock serve`, a field of the file that `--config` names, "
        "and (the engine's) a keyword of `LLM` with underscores. Flags override the file.\n\n"
        "`penstock config-table` prints this table.\n\n" + BEGIN + as_table() + END
    )


# ---- commands


def commands_page() -> str:
    """All commands, and each one's own arguments; settings have their own page."""
    parts = [
        f"# Commands\n\n{WRITTEN}\n"
        "`penstock COMMAND --help` shows the same, with examples. Commands that start processes "
        "also take the [settings](settings.md) of those processes as flags.\n\n"
        "| command | what it does |\n|---|---|\n"
    ]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        parts.append(f"| **{group}** | |\n")
        parts += [
            f"| `penstock {each.name}` | {each.summary} |\n"
            for each in COMMANDS
            if each.group == group
        ]
    parts += [_command(each) for each in COMMANDS]
    return "".join(parts)


def _command(command: Command) -> str:
    parser = command.parser()
    text = f"\n## penstock {command.name}\n\n{_one_line(parser.description or command.summary)}\n"
    rows = list(_arguments(parser))
    for name, kind in _kinds(parser):
        rows += [(f"{name}: {flag}", words) for flag, words in _arguments(kind)]
    if rows:
        text += "\n| argument | what it sets |\n|---|---|\n"
        text += "".join(f"| `{flag}` | {words} |\n" for flag, words in rows)
    return text


def _arguments(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    for action in parser._actions:
        own = not action.dest.startswith("setting_") and action.dest not in ("help", "config")
        if own and action.help != argparse.SUPPRESS and not _is_kinds(action):
            flags = [flag for flag in action.option_strings if flag.startswith("--")]
            words = (action.help or "") % {"default": action.default}
            yield "`, `".join(flags) or str(action.metavar or action.dest), _one_line(words)


def _kinds(parser: argparse.ArgumentParser) -> Iterable[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if _is_kinds(action):
            yield from (action.choices or {}).items()  # type: ignore[union-attr,misc]


def _is_kinds(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _one_line(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


# ---- endpoints


def endpoints_page(document: Mapping[str, Any]) -> str:
    """document: a gateway's /openapi.json."""
    schemas = document["components"]["schemas"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    text = (
        f"# Endpoints\n\n{WRITTEN}\n"
        "A running server shows the same at `/docs`, and as OpenAPI 3.1 at `/openapi.json`. The "
        "[guide](../guides/api.md) has an example of each.\n\n"
        "If the server has API keys, every path needs one except those marked *open*; `/metrics` "
        "and `/live` need an admin's key.\n\n"
        "| endpoint | what it does | body | key |\n|---|---|---|---|\n"
    )
    bodies: dict[str, None] = {}
    for method, path, operation in operations:
        body = _body(operation)
        if body:
            bodies[body] = None
        link = f"[{body}](#{body.lower()})" if body else ""
        access = "" if operation["security"] else "open"
        text += f"| `{method} {path}` | {operation['summary']} | {link} | {access} |\n"
    text += "\n" + _headers(operations) + f"\n## Bodies\n\n{UNKNOWN}\n"
    return text + "".join(_fields(name, schemas) for name in bodies)


def _body(operation: Mapping[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    (content,) = operation["requestBody"]["content"].values()
    schema = content["schema"]
    return str(schema["$ref"].rpartition("/")[2])


def _headers(operations: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    found = {
        parameter["name"]: parameter["description"]
        for _, _, operation in operations
        for parameter in operation["parameters"]
        if parameter["in"] == "header"
    }
    rows = "".join(f"| `{name}` | {words} |\n" for name, words in found.items())
    return f"## Request headers\n\n| header | meaning |\n|---|---|\n{rows}"


def _fields(name: str, schemas: Mapping[str, Any]) -> str:
    schema = schemas[name]
    required = schema.get("required", ())
    rows = "".join(
        f"| `{field}` | {_type(kind)} | {'yes' if field in required else ''} |\n"
        for field, kind in sorted(schema["properties"].items())
    )
    return f"\n### {name}\n\n| field | type | required |\n|---|---|---|\n{rows}"


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if "$ref" in schema:
        return f"object {schema['$ref'].rpartition('/')[2]}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


# ---- metrics


def metrics_page(plain: str, gateway: str, engine: str, worker: str) -> str:
    """Each argument is the text of a /metrics: of a gateway whose engine core has no metrics port,
    and of the three kinds of processes where all have one."""
    sections = {
        "Gateway": (
            gateway,
            "On a gateway's main port or, with API keys, on its `--admin-port`.",
        ),
        "Engine core": (engine, "On `--engine-metrics-port`."),
        "Gateway, for an engine core without a metrics port": (
            plain,
            "In addition to the gateway's own, so that a small system needs only one port.",
        ),
        "Gateway, with `--data-dir`": (
            storage_metrics(),
            "In addition, if [files and batches](../guides/batches.md) are stored. "
            "`penstock:batch_lines_total` and `penstock:batch_open_lines` come from the process "
            "that runs batches.",
        ),
        "Gateway, with models on demand": (
            residence_metrics(),
            "In addition, for each of [several models](../guides/several-models.md).",
        ),
        "Worker": (worker, "On `--worker-metrics-port`."),
    }
    text = (
        f"# Metrics\n\n{WRITTEN}\n"
        "All families have the label `model_name`. Each process also reports its own memory, CPU "
        "time and open files (`process_…`). [Observability](../guides/observability.md) says how "
        "to collect and read them.\n"
    )
    seen = {family.name for family in _families(gateway)}
    for title, (page, words) in sections.items():
        text += f"\n## {title}\n\n{words}\n\n| family | kind | labels | what it counts |\n"
        text += "|---|---|---|---|\n"
        for family in _families(page):
            if page is not plain or family.name not in seen:
                text += _family(family)
    return text


def _families(page: str) -> list[Metric]:
    families = text_string_to_metric_families(page)
    return [each for each in families if not each.name.startswith(OWN_PROCESS)]


def _family(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = {label: None for sample in family.samples for label in sample.labels}
    shown = ", ".join(f"`{label}`" for label in labels if label not in ("model_name", "le"))
    return f"| `{name}` | {family.type} | {shown} | {_one_line(family.documentation)} |\n"
