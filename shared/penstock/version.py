"""The version of this distribution; a test holds it against the installed metadata."""

__version__ = "0.1.0"
