"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python -m loadtest.peers.inprocess --help`."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import msgspec

from loadtest.peers.comparison import OURS, Comparison, number, peers_rows
from loadtest.peers.library.systems import NAMES, System, make_system
from loadtest.peers.library.work import SMOKE_WORK, WORK, Run, Work
from loadtest.report import Document, markdown_table
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import limits_of

HEAD = """# Penstock beside other libraries

Tokens per second, of each machine and model the newest run of `python -m loadtest.peers.inprocess`.

- Decode: tokens after the first, over the time after the first. Streams: output tokens over the
  whole call. Prefill: prompt tokens over a call for one token each. Prompts are random token ids,
  other ones in each round; every output's length is checked.
- `penstock` drafts, as it does by default: random prompts lead a small model into repetition, from
  which one stream gains more than from most real texts, and can exceed the limit.
- vLLM and transformers don't read GGUF in these versions: they have the same weights in bfloat16.
- llama.cpp's buffers for AMX crash: where a processor has it, llama.cpp runs without them, by
  AVX-512; before 2026-11-29 its figures were missing there. OpenVINO GenAI fails when confined to
  AVX2, so there it keeps AVX-512, and it can't load Q4_K_M files or the random models.
- The limit is what the machine allows for the GGUF file: every weight read once a step, and keys
  and values in bfloat16, or every multiply-add of the matrices in int8 (two operations), whichever
  takes longer. *Reached* is Penstock's share of it. Before 2026-11-24 23:00 the probe may have
  found half of it on processors with two units for int8 products.
"""


class Libraries(Comparison):
    """Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run.

    Each loads its model once, in a process of its own environment, and warms up. Then they take
    turns: a round is every piece of work on every system, one computing at a time. A probe of the
    machine's limits runs before each piece of work.
    """

    name = "inprocess"
    label = "tokens/s (dotted: the machine's limit)"
    peers, pieces, kind, names = "systems", "work", Work, NAMES
    work, smoke_work, seconds = WORK, SMOKE_WORK, 780.0
    probes = True
    head = HEAD

    def make(self, name: str, model: Path) -> System:
        return make_system(name, model)

    def figures(self, work: Work, runs: list[Run]) -> Document:
        rates = [work.rate(run) for run in runs]
        return {
            "tokens_per_s": statistics.median(rates),
            "each_tokens_per_s": rates,
            "runs": [
                {
                    "seconds": run.seconds,
                    "output_tokens": run.output_tokens,
                    "decode_s": run.decode_s,
                }
                for run in runs
            ],
        }

    def rate(self, document: Document, peer: str, work: Work) -> float | None:
        """Median tokens per second; None without a run."""
        figures = document["systems"][peer]["work"].get(work.name)
        return figures and figures["tokens_per_s"]

    def limit(self, document: Document, work: Work) -> float | None:
        """Tokens per second."""
        cost, limits = document["model_cost"], limits_of(document)
        return limits and work.limit(msgspec.convert(cost, ModelCost), limits)

    def tables(self, document: Document) -> list[str]:
        systems, limits = document["systems"], limits_of(document)
        rows = []
        for work in self.work_of(document):
            cells = [self._rate_cell(document, name, work) for name in systems]
            rows.append([work.name, *cells, *self._verdict(document, work)])
            rows[-1] += self._limit_cells(document, work) if limits else []
        rows += peers_rows(systems, "start to loaded, s", len(rows[0]) if rows else 0)
        heads = ["tokens per second", *systems, "to the best peer", "target", "met"]
        heads += ["limit", "reached"] if limits else []
        versions = ", ".join(dict.fromkeys(system["version"] for system in systems.values()))
        told = f"medians of {document['rounds']} round(s); {versions}."
        told += f" The machine's limit, {limits.told()}." if limits else ""
        return [told, markdown_table(heads, rows)]

    def notes(self, document: Document) -> list[str]:
        notes = super().notes(document)
        if any(system["once"] for system in document["systems"].values()):
            notes.append("¹ Beyond the time set for it: one run, not repeated.")
        return notes

    def best_peer(self, document: Document, work: Work) -> tuple[str, float] | None:
        """The fastest other system, and ours to its rate; None where either is missing."""
        found = {name: self.rate(document, name, work) for name in document["systems"]}
        rates = {name: rate for name, rate in found.items() if rate is not None}
        ours = rates.pop(OURS, None)
        rates.pop(f"{OURS}_without_drafts", None)
        if ours is None or not rates:
            return None
        best = max(rates, key=rates.__getitem__)
        return best, ours / rates[best]

    def _rate_cell(self, document: Document, name: str, work: Work) -> str:
        system, found = document["systems"][name], self.rate(document, name, work)
        if found is None:
            return "failed" if system["failures"] and self.takes(document, name, work) else "–"
        return number(found) + (" ¹" if work.name in system["once"] else "")

    def _verdict(self, document: Document, work: Work) -> list[str]:
        """Cells: to the best peer, target, met."""
        best = self.best_peer(document, work)
        target = "–" if work.target is None else f"≥ {work.target:g} ×"
        if best is None:
            return ["–", target, "–"]
        name, ratio = best
        met = "–" if work.target is None else "yes" if ratio >= work.target else "**no**"
        return [f"{ratio:.2f} × {name}", target, met]

    def _limit_cells(self, document: Document, work: Work) -> list[str]:
        """What the machine allows, and the share of it that ours reached."""
        most, ours = self.limit(document, work), self.rate(document, OURS, work)
        reached = "–" if not (ours and most) else f"{100 * ours / most:.0f} %"
        return ["not measured" if most is None else number(most), reached]


LIBRARIES = Libraries()
COMMAND = LIBRARIES.command()

if __name__ == "__main__":
    sys.exit(COMMAND.main())
