"""The version of this distribution, and another project's that has the name of its package."""

__version__ = "0.1.0"

DISTRIBUTION = "penstock-llm"
"""What pip knows it by: `penstock` on PyPI is another project's."""
COMMAND = "penstock.cli.main:main"
"""What the command `penstock` runs, as the distribution's metadata have it."""


def foreign_distribution() -> str | None:
    """Version of a distribution called `penstock` in this environment that isn't ours; None: there
    is none. Its files lie where ours do, so either may have replaced the other's."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("penstock")
    except PackageNotFoundError:
        return None
    # Ours had that name before it was published.
    ours = any(entry.value == COMMAND for entry in found.entry_points)
    return None if ours else found.version
