"""Processes are killed and frozen under streams, and every answer is compared with its twin.

mix        the requests
reading    one stream, put together again as it comes
fleet      32 streams that never end, each compared with its undisturbed twin
disturbing kills and freezes, and how long the streams stood still
report     the table, and the file
served     a `penstock serve` of our own
"""
