"""A thousand engine cores in cells, in virtual time."""
