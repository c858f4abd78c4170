"""`--chat-template`: a template that takes the place of the model's own."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import StartupError

MAX_BYTES = 1 << 20


def read_template(given: str) -> str:
    """given: the name of a file, or the template itself, which is recognised by its `{` or line
    breaks.

    Raises StartupError for a file that can't be read, and for a template that doesn't compile.
    """
    source = given if _is_template(given) else _read_file(Path(given))
    _check(source)
    return source


def kept_template(given: str | None) -> str | None:
    """The template itself where a file is named: a process that is started again has what the first
    had. What can't be read stays: `read_template` says why."""
    if given is None or _is_template(given):
        return given
    try:
        source = _read_file(Path(given))
    except StartupError:
        return given
    # A line break tells it from a name, and Jinja leaves the last one out.
    return source if _is_template(source) else f"{source}\n"


def _is_template(given: str) -> bool:
    return "{" in given or "\n" in given


def _read_file(path: Path) -> str:
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise StartupError(f"--chat-template {path} can't be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise StartupError(
            f"--chat-template {path} has {len(content)} bytes; at most {MAX_BYTES} are allowed"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StartupError(f"--chat-template {path} is not UTF-8 text") from None


def _check(source: str) -> None:
    """The operator's own text, so parsing it here, in the process that starts, is safe."""
    import jinja2

    from penstock.text.jinja_environment import make_environment

    if not source.strip():
        raise StartupError("--chat-template is empty")
    try:
        make_environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise StartupError(
            f"--chat-template doesn't compile: {error}, line {error.lineno}"
        ) from None
