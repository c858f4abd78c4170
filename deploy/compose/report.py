"""What a run showed, as JSON and as Markdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from deploy.compose.check import Findings


@dataclass
class Report:
    """seconds: by what took them.  image_mb: MB (10^6 bytes) of an image's own layers over the base
    image.  rss_mib: resident MiB by container, after the first token.  left_out: services that were
    not started, and why."""

    gateways: int
    seconds: dict[str, float] = field(default_factory=dict)
    image_mb: dict[str, float] = field(default_factory=dict)
    rss_mib: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    engine: dict[str, str] = field(default_factory=dict)
    findings: Findings | None = None

    def as_data(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)

    def markdown(self) -> str:
        """The tables."""
        lines = ["| what | seconds |", "|---|---:|"]
        lines += [f"| {name} | {value:.1f} |" for name, value in self.seconds.items()]
        lines += ["", "| image | MB of its own over the base |", "|---|---:|"]
        lines += [f"| {name} | {size:.0f} |" for name, size in self.image_mb.items()]
        lines += ["", "| container | RSS, MiB |", "|---|---:|"]
        lines += [f"| {name} | {size:.0f} |" for name, size in self.rss_mib.items()]
        lines += [f"\nLeft out: {name}: {why}." for name, why in self.left_out.items()]
        if self.findings is not None:
            lines += ["", *_findings(self.findings)]
        return "\n".join(lines) + "\n"


def _findings(found: Findings) -> list[str]:
    lines = [
        "| killed (SIGKILL) | first goes on, s | all go on, s | cut | refused | open there |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for blow in found.blows:
        there = "–" if blow.open_there is None else str(blow.open_there)
        lines.append(
            f"| {blow.victim} | {blow.first:.1f} | {blow.all:.1f} | {blow.cuts} | {blow.refused} "
            f"| {there} |"
        )
    lines += [
        "",
        "| restarted in turn | containers | seconds | answers meanwhile | begun anew |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.service} | {each.containers} | {each.seconds:.0f} | {each.answers} "
        f"| {each.cuts} |"
        for each in found.restarts
    ]
    if found.targets:
        seen = ", ".join(f"{count} {job}" for job, count in sorted(found.targets.items()))
        lines += ["", f"Prometheus sees up, with two engines: {seen}."]
    lines += ["", f"{found.equal} answers equal to their undisturbed twins; "]
    lines[-1] += f"{len(found.wrong)} things wrong."
    return lines + [f"- {line}" for line in found.wrong]
