"""Families of models whose tower sees. All of them are in `served`."""
