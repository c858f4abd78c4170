"""Prints the figures by which the tree is judged: modules, rooms, docstrings, pages, flags.

python -m tests.house
python -m tests.house --walks [-v]     how many calls a chat request makes, in which functions
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

from penstock.config.settings import ServeConfig
from penstock.config.tree import leaves

ROOT = Path(__file__).parents[1]
PRODUCT = ("shared", "services", "kernels")
FRAGMENTS = ("Of ", "As ", "By ", "Those ", "That ", "The same", "See ", "Likewise")
"""Beginnings of docstrings that need the line above to be understood."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--walks",
        action="store_true",
        help="count the calls of a streamed chat request, and the functions and modules that it "
        "enters, as tests/request_walk.py says",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="with --walks: name them")
    chosen = parser.parse_args()
    if chosen.walks:
        print_walks(verbose=chosen.verbose)
    else:
        print_figures()


def print_walks(*, verbose: bool) -> None:
    from tests.request_walk import calls_of, walks  # Not above: it imports torch.

    for part, entered in walks().items():
        print(f"{calls_of(entered):>8,}  calls in the {part}")
        print(f"{sum(map(len, entered.values())):>8,}  functions in the {part}")
        print(f"{len(entered):>8,}  modules in the {part}")
        if verbose:
            for module, functions in sorted(entered.items()):
                print(f"{functions.total():>12,}  {module}")
                for function, calls in functions.most_common():
                    print(f"{calls:>16,}  {function}")


def print_figures() -> None:
    modules = [path for path in tracked(*PRODUCT) if path.suffix == ".py"]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules}
    docstrings = [text for tree in trees.values() for text in docstrings_of(tree)]
    pages = [path for path in tracked("docs") if path.suffix == ".md"]
    figures = {
        "product modules": len(modules),
        "packages": sum(path.name == "__init__.py" for path in modules),
        "loose modules in shared/penstock": len(list((ROOT / "shared/penstock").glob("[!_]*.py"))),
        "modules with one importer, in their own package": lonely(trees),
        "docstrings": len(docstrings),
        "docstrings that begin with a fragment": sum(
            text.startswith(FRAGMENTS) for text in docstrings
        ),
        "'behind' in product modules": sum(
            len(re.findall(r"\bbehind\b", path.read_text(encoding="utf-8"))) for path in modules
        ),
        "section banners": sum(
            banners(path.read_text(encoding="utf-8"), trees[path]) for path in modules
        ),
        "pages in docs": len(pages),
        "words in docs": words(pages),
        "words in tests/README.md": words([ROOT / "tests/README.md"]),
        "lines of Python in loadtest": sum(
            len(path.read_text(encoding="utf-8").splitlines())
            for path in tracked("loadtest")
            if path.suffix == ".py"
        ),
        "results in loadtest": len(tracked("loadtest/results")),
        "flags": len(leaves(ServeConfig)),
        "flags in --help": sum(not leaf.advanced for leaf in leaves(ServeConfig)),
    }
    for name, value in figures.items():
        print(f"{value:>8,}  {name}")


def tracked(*folders: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in found if path.is_file()]


def docstrings_of(tree: ast.Module) -> list[str]:
    """Returns those of modules, classes and functions, and the ones below attributes."""
    found = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    found.append(text.strip())
    return found


def banners(text: str, tree: ast.Module) -> int:
    """Returns the number of comments that stand alone, between blank lines: each divides a file
    into what may be two."""
    strings = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    found, above, comment = 0, "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") and number not in strings:
            comment = comment or not above.strip()
        else:
            found += comment and not line.strip()
            comment = False
        above = line
    return found


def words(pages: list[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def lonely(trees: dict[Path, ast.Module]) -> int:
    """Returns the number of modules that a single product module imports, of the same package."""
    names = {module_name(path): path for path in trees}
    importers: dict[Path, set[Path]] = {path: set() for path in trees}
    for path, tree in trees.items():
        for name in imported(tree):
            if name in names:
                importers[names[name]].add(path)
    counts = Counter(
        path
        for path, found in importers.items()
        if len(found) == 1 and next(iter(found)).parent == path.parent
    )
    return sum(path.name not in ("__init__.py", "__main__.py") for path in counts)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


if __name__ == "__main__":
    main()
