"""The list of faults: data, a file for each area in `faults`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

FAULTS = Path(__file__).with_name("faults")
BUILT = (".cpp", ".h")
"""How the names of files end whose faults only show once they are compiled."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: one place of one file, written otherwise."""

    name: str
    area: str
    """The name of its file in `faults`."""
    file: str
    old: str
    """Occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Files or tests as pytest names them, of which at least one must fail."""
    equivalent: str
    """Why no test can fail; empty if one must."""

    @property
    def built(self) -> bool:
        """Whether it needs the kernels to be compiled again."""
        return self.file.endswith(BUILT)

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the tests that must fail lie."""
        files = dict.fromkeys(test.partition("::")[0] for test in self.tests)
        return tuple(dict.fromkeys(str(Path(file).parent) for file in files))

    def applied(self, source: str) -> str:
        """Returns the file's text with the fault. Raises ValueError where its place isn't there
        once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its text occurs {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)


def listed() -> list[Mutant]:
    """All of them, area by area."""
    return [mutant for file in sorted(FAULTS.glob("*.toml")) for mutant in _read(file)]


def _read(file: Path) -> list[Mutant]:
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    return [
        Mutant(
            name=each["name"],
            area=file.stem,
            file=each["file"],
            old=each["old"].strip("\n"),
            new=each["new"].strip("\n"),
            tests=tuple(each["tests"]),
            equivalent=each.get("equivalent", ""),
        )
        for each in found["mutant"]
    ]
