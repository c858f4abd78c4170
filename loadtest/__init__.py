"""Load generator, measurements, and comparisons with other servers."""
