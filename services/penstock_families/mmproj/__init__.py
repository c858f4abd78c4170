"""Kinds of mmproj files, as those of `penstock.prepare.mmproj`."""
