"""Which models fit a machine, and how fast one answer is there: `penstock recommend`, and the page
that a new user sees.

releases   a table of well-known models: their sizes
fits       memory and speed of each on a machine, by arithmetic
"""
