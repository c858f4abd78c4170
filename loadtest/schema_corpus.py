"""How many of the JSON schemas that people write are served, and whether any is served wrongly:
`python -m loadtest.schema_corpus FOLDER`.

FOLDER holds files with a `schema` and `tests` (`data`, `valid`), as `maskbench/data` of
JSONSchemaBench has them (github.com/guidance-ai/jsonschemabench, Geng et al. 2025: 11,306 files).
Each schema goes the way of a request's: the bound on its bytes, and the process that compiles it,
with its own bounds.  Then its documents are followed token by token.  A document that is marked
invalid and admitted counts as wrong where the package jsonschema calls it invalid too: to it, and
in the standard, a `format` is an annotation.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema

from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say
from penstock.config.settings import GrammarSettings
from penstock.prepare import load_manifest, prepare
from penstock.process.machine import usable_cores
from penstock.protocol.common import Grammar
from penstock.text.tokenizer import Tokenizer
from penstock_bench.load.report import markdown_table
from penstock_grammars.library import Library
from penstock_grammars.trial import Trial, TrialProcesses
from penstock_grammars.unique_arrays import UniqueArrays
from penstock_worker.grammar.errors import GrammarError

MODEL = "smollm2-135m"
NARROWER = (
    "Valid and not admitted are mostly documents with properties that their schema doesn't list: "
    "an object that lists some gets no others "
    "([structured output](../../docs/guides/structured-output.md)), and they come in the schema's "
    "order."
)
SHOWN = 15
"""Reasons in the table."""


class Judge:
    """What becomes of a schema and its documents. One thread's."""

    def __init__(self, folder: Path) -> None:
        manifest = load_manifest(folder)
        what = (folder / "tokenizer.json", manifest.config.vocab_size)
        eos = manifest.generation.eos_token_ids
        self._processes = TrialProcesses(*what, eos)
        self._trial, self._library = Trial(self._processes), Library(*what, eos)
        self._tokenizer = Tokenizer.from_bytes(
            what[0].read_bytes(), add_bos=False, bos_token_id=None
        )
        self.refused: Counter[str] = Counter()
        self.documents: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._bound = GrammarSettings().max_grammar_bytes

    def look(self, file: Path) -> None:
        """Adds a file to the counts."""
        content = json.loads(file.read_bytes())
        if "schema" not in content:
            self.refused["(no schema in the file)"] += 1
            return
        schema = content["schema"]
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) > self._bound:
            self.refused[f"over {self._bound >> 10} KiB"] += 1
            return
        try:
            source = self._trial.source(Grammar("json_schema", text))
        except GrammarError as error:
            self.refused[reason(str(error))] += 1
            return
        self.refused["served"] += 1
        for test in content.get("tests", ()):
            verdict = self._verdict(source, schema, test)
            self.documents[verdict] += 1
            if verdict == "wrong":
                self.wrong.append(file.name)

    def close(self) -> None:
        self._trial.end()
        self._processes.end()

    def _verdict(self, source: str, schema: Any, test: dict[str, Any]) -> str:
        admitted = self._admits(source, test["data"])
        if admitted is None:
            return "ended by a limit"
        if test["valid"]:
            return "valid, admitted" if admitted else "valid, not admitted"
        if not admitted:
            return "invalid, not admitted"
        return (
            "wrong" if not is_valid(schema, test["data"]) else "invalid by an annotation, admitted"
        )

    def _admits(self, source: str, data: Any) -> bool | None:
        """None where a limit of the matcher was met."""
        matcher = self._library.matcher(source)
        text = json.dumps(data, ensure_ascii=False)
        ids = self._tokenizer.encode(text)
        taken = matcher.try_consume_tokens(ids)
        if matcher.is_error():
            return None
        arrays = UniqueArrays.of_source(source)
        differ = arrays is None or arrays.begin().push(text.encode())
        return bool(taken == len(ids) and matcher.is_accepting() and differ)


def measure(flags: Flags) -> Document:
    files = sorted(flags.folder.glob("*.json"))[:: flags.every]
    if not files:
        raise SetupError(f"no .json files in {flags.folder}")
    return {"counts": counted(files)}


def counted(files: list[Path]) -> dict[str, Any]:
    """Over all files, by as many threads as there are cores. Raises what a thread met: counts
    without its files would be others."""
    folder, cores = prepare(MODEL), max(int(usable_cores()), 1)
    judges = [Judge(folder) for _ in range(cores)]

    def look(number: int) -> None:
        for place, file in enumerate(files[number::cores]):
            judges[number].look(file)
            if number == 0 and place % 500 == 0:
                say(f"{len(files) - cores * place} left")

    try:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(look, range(cores)))
    finally:
        for judge in judges:
            judge.close()
    return {
        "schemas": dict(sum((judge.refused for judge in judges), Counter())),
        "documents": dict(sum((judge.documents for judge in judges), Counter())),
        "wrong": sorted(name for judge in judges for name in judge.wrong),
    }


def is_valid(schema: Any, data: Any) -> bool:
    """Whether the package jsonschema takes the data for valid, formats left aside; True where it
    can't say."""
    try:
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        return bool(validator(schema).is_valid(data))
    except Exception:
        return True


def reason(complaint: str) -> str:
    """A complaint without what is the schema's own: places, names and numbers."""
    text = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`|#/\S*", "…", complaint.splitlines()[0])
    return re.sub(r"\d+", "N", text)[:90]


def to_markdown(document: Document) -> str:
    """Shares of schemas and documents, and the commonest reasons."""
    counts = document["counts"]
    schemas, documents = Counter(counts["schemas"]), Counter(counts["documents"])
    total = schemas.total() - schemas.pop("(no schema in the file)", 0)
    served = schemas.pop("served", 0)
    rows = [["served", f"{served:,}", f"{served / total:.1%}"]]
    rows.append(["refused", f"{total - served:,}", f"{(total - served) / total:.1%}"])
    reasons = [[words, f"{count:,}"] for words, count in schemas.most_common(SHOWN)]
    rest = schemas.total() - sum(count for _, count in schemas.most_common(SHOWN))
    reasons += [["others", f"{rest:,}"]] if rest else []
    judged = [[words, f"{count:,}"] for words, count in documents.most_common()]
    return "\n".join(
        [
            f"{machine_line(document)}.",
            "",
            markdown_table(["schemas", "", "share"], rows),
            markdown_table(["documents of those that are served", ""], judged),
            NARROWER,
            "",
            *([f"Wrong: {', '.join(counts['wrong'])}", ""] if counts["wrong"] else []),
            markdown_table(["refused because", "schemas"], reasons),
        ]
    )


COMMAND = Measurement(
    "schema_corpus",
    __doc__,
    measure,
    to_markdown,
    {
        "folder": {"type": Path, "metavar": "FOLDER", "nargs": "?", "default": Path()},
        "--every": (1, "only each Nth file"),
    },
    faults=lambda document: document["counts"]["wrong"],
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
