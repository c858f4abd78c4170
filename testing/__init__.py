"""Fakes and process starters that tests and load tests share."""
