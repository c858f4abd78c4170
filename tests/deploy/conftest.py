"""Fixtures of several tests here."""

from tests.deploy.gateway_pair import engine, folder, pair, started

__all__ = ["engine", "folder", "pair", "started"]
