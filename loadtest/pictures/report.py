"""What the page of results says."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from loadtest.report import Document, chart, distribution, machine_line, sections, table

FIRST = {
    "model": "{model}",
    "requests": "{requests}",
    "distinct pictures": "{distinct}",
    "prepared": "{prepared:.0f}",
    "encoded": "{encoded:.0f}",
    "KiB to the worker": "{kib:.0f}",
    "s until all have ended": "{seconds:.2f}",
    "ms to the first token, p50": "{p50:.0f}",
    "p99": "{p99:.0f}",
    "commit": "{commit}",
}
BESIDE = {
    "model": "{model}",
    "ms between two tokens of a text": "{name}",
    "tokens": "{count}",
    "p50": "{p50:.2f}",
    "p99": "{p99:.2f}",
    "max": "{max:.1f}",
}
UNITS = {"count": 1, "p50": 1000, "p99": 1000, "max": 1000}
"""Of a column of BESIDE, in what is kept of the gaps, which are seconds."""
PREPARED = {
    "pictures prepared a second": "{name}",
    "1 process": "{one:.0f}",
    "2 processes": "{two:.0f}",
    "ratio": "{ratio:.2f}",
}
PEERS = {
    "ms to the first token": "{name}",
    "one picture at a time": "{alone:.0f}",
    "of all at once: p50": "{p50:.0f}",
    "p99": "{p99:.0f}",
    "s until all have ended": "{seconds:.1f}",
}


def moved_most(document: Document) -> float:
    """Seconds that the p99 of the gaps moved by, with the tiny model, whose steps take no time:
    what moves is what gateways do."""
    gaps = next((row["gaps"] for row in document["rows"].values()), None)
    return float(gaps["beside pictures"]["p99"] - gaps["alone"]["p99"]) if gaps else 0.0


def by_system(document: Document) -> list[dict[str, Any]]:
    """Medians of the rounds, in seconds."""
    rounds = document["peers"]
    names = [each["name"] for each in rounds[0]] if rounds else []
    found = []
    for name in names:
        own = [each for one in rounds for each in one if each["name"] == name]
        spread = [distribution(each["together"]) for each in own]
        found.append(
            {
                "name": name,
                "alone": median(wait for each in own for wait in each["alone"]),
                "p50": median(each["p50"] for each in spread),
                "p99": median(each["p99"] for each in spread),
                "seconds": median(each["seconds"] for each in own),
            }
        )
    return found


def markdown(document: Document) -> str:
    rows = document["rows"]
    first = [
        {"commit": row["commit"], **row["first"], **distribution(row["first"]["waits"], 1000)}
        for row in rows.values()
    ]
    gaps = [
        {"model": model, "name": name} | {key: kept[key] * unit for key, unit in UNITS.items()}
        for model, row in rows.items()
        for name, kept in row["gaps"].items()
    ]
    prepared = [row | {"ratio": row["two"] / row["one"]} for row in document["prepared"]]
    return sections(
        [
            machine_line(document),
            table(FIRST, first),
            table(BESIDE, gaps),
            f"With the trained model the p99 moves by {1e3 * moved_most(document):.1f} ms; "
            f"{1e3 * document['allowed']:.0f} are allowed.",
            table(PREPARED, prepared),
            _peers(document),
        ]
    )


def _peers(document: Document) -> str:
    systems = by_system(document)
    if not systems:
        return ""
    shown = [row | {key: 1000 * row[key] for key in ("alone", "p50", "p99")} for row in systems]
    return (
        f"{table(PEERS, shown)}\n\nThe random model; medians of {len(document['peers'])} rounds in "
        "turn, an answer of one token. llama.cpp comes as a wheel that isn't compiled for this "
        "machine, has the same weights in float16, and prepares pictures in its own way; "
        "transformers answers those that come at once in turn.\n\n"
        "![Time to the first token](pictures.png)"
    )


def draw(path: Path, document: Document) -> None:
    """Time to the first token, by system."""
    systems = by_system(document)
    if not systems:
        return
    names = [row["name"].replace(" (", "\n(") for row in systems]
    with chart(path, 2, size=(9, 2.6), sharey=True) as (alone, together):
        for axes, key, title in (
            (alone, "alone", "one picture at a time"),
            (together, "p50", "64 requests at once, 16 pictures: median"),
        ):
            bars = axes.barh(names, [1000 * row[key] for row in systems])
            axes.bar_label(bars, fmt="%.0f", padding=3)
            axes.set(title=title, xlabel="ms to the first token")
            axes.margins(x=0.15)
        alone.invert_yaxis()
