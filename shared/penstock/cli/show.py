"""`penstock show`: what there is to know of a model before it is served."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.columns import columns, counted, decimal
from penstock.cli.model_impl import add_model_impl, overrides_given
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest, ModelNotFound

if TYPE_CHECKING:
    from penstock.hub.name import HubName
    from penstock.hub.repository import Repository
    from penstock.prepare.describe import DescribedExperts, Description


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Describes a model: family, parameters, context, quantisation, licence, template, size,"
        " and the memory that it will take. For a model that isn't local, shows what its"
        " repository on the hub holds; nothing is downloaded."
    )
    parser.epilog = examples("penstock show smollm2-135m", "penstock show owner/name --json")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    add_model_impl(parser)
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0. Raises ModelNotFound, UnsupportedModel, StartupError."""
    if not arguments.model:
        raise InvalidRequest("MODEL is empty")
    from penstock.cli.processes import loading
    from penstock.prepare import load_manifest, prepare
    from penstock.prepare.describe import computed_by, describe

    try:
        folder = prepare(
            arguments.model,
            cache_dir=arguments.cache_dir,
            fetch="never",
            model_impl=arguments.model_impl,
            language_model_only=arguments.language_model_only,
            mmproj=arguments.mmproj,
            overrides=overrides_given(arguments),
        )
    except ModelNotFound:
        repository = _on_the_hub(arguments.model)
        if repository is None:
            raise
        _print_repository(repository, as_json=arguments.json)
        return 0
    model = load_manifest(folder)
    cpu_bytes, refused = loading(model)
    known = msgspec.structs.replace(describe(folder, model), cpu_bytes=cpu_bytes, refused=refused)
    if arguments.json:
        print(msgspec.json.encode(known).decode())
    else:
        print(_text(known, computed_by(model)))
    return 0


def _text(known: Description, computed: str) -> str:
    kind = "vectors, scores or classes" if known.pooling else "text"
    parameters = "?" if known.parameters is None else counted(known.parameters)
    rows = [
        ("name", known.name),
        ("source", known.source),
        ("family", f"{known.family}, gives {kind}"),
        ("computed by", computed),
        ("can be loaded", _loads(known.refused)),
        ("parameters", f"{parameters} in {known.layers} layers"),
        *_experts(known.experts),
        ("context", f"{known.context:,} tokens"),
        ("weights", f"{known.format} {known.weights}, {decimal(known.size)}"),
        ("memory", _memory(known)),
        ("chat template", "yes" if known.chat_template else "no"),
        ("tool calls", known.tool_call_parser or "none"),
        ("reasoning", known.reasoning_parser or "none"),
        ("licence", known.licence or "its files don't say"),
        ("prepared", known.folder),
    ]
    return columns(rows)


def _experts(known: DescribedExperts | None) -> list[tuple[str, str]]:
    """What they are, and how many of their numbers each of a few ranks would hold."""
    if known is None:
        return []
    said = f"{known.active} of {known.count} in {known.layers} layers"
    whole, half = counted(known.parameters), counted(known.parameters // 2)
    dealt = f", {half} on each of 2 ranks (--enable-expert-parallel)" if known.count > 1 else ""
    return [("experts", f"{said}, {whole} parameters{dealt}")]


def _loads(refused: str | None) -> str:
    if refused is None:
        return "not known: no worker can be imported here"
    return f"no: {refused}" if refused else "yes"


def _memory(known: Description) -> str:
    weights = f"about {decimal(known.size)} of weights"
    if known.cpu_bytes is not None:
        weights += f" ({decimal(known.cpu_bytes)} on a CPU)"
    if not known.kv_bytes_per_token:
        return weights
    whole = decimal(known.kv_bytes)
    each = decimal(known.kv_bytes_per_token)
    states = f", {decimal(known.state_bytes)} of states a sequence" if known.state_bytes else ""
    return f"{weights}, {each} of KV cache a token ({whole} for a whole context){states}"


def _on_the_hub(model: str) -> Repository | None:
    """The repository of this name on the hub; None for a name that isn't one of the hub's, or if
    the hub can't be reached."""
    from penstock.hub.connection import HubUnreachable, default_hub
    from penstock.hub.name import parse
    from penstock.hub.repository import look

    name: HubName | None = parse(model)
    if name is None:
        return None
    try:
        return look(default_hub(), name)
    except HubUnreachable as error:
        print(f"penstock: {error}", file=sys.stderr)
        return None


def _print_repository(repository: Repository, *, as_json: bool) -> None:
    from penstock.hub.gguf_names import group_gguf
    from penstock.hub.selection import select

    sizes = {file.path: file.size or 0 for file in repository.files}
    chosen = select(repository.name, sizes)
    choices = {
        model.label or model.files[0]: sum(sizes[path] for path in model.files)
        for model in group_gguf(sizes)
    }
    size = sum(sizes[path] for path in chosen.files)
    facts = {
        "name": str(repository.name),
        "here": False,
        "commit": repository.commit,
        "licence": repository.licence,
        "format": "GGUF" if chosen.gguf is not None else "safetensors",
        "choice": chosen.gguf.label if chosen.gguf is not None else "",
        "size": size,
        "choices": choices,
    }
    if as_json:
        print(msgspec.json.encode(facts).decode())
        return
    weights = f"{facts['format']} {facts['choice']}".strip()
    rows = [
        ("name", str(repository.name)),
        ("here", f"no; `penstock pull {repository.name}` downloads {decimal(size)}"),
        ("weights", weights),
        ("licence", repository.licence or "its card doesn't say"),
        ("commit", repository.commit),
    ]
    print(columns(rows))
    if choices:
        print("\nquantisations:")
        listed = [
            (f"  {repository.name.repository}:{each}", decimal(n)) for each, n in choices.items()
        ]
        print(columns(listed))
