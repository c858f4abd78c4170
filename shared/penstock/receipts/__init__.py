"""Receipts: what an answer was computed from, signed, and how somebody else finds out whether it
was.

statement  what a receipt says, and how one is read
signing    the server's key, and whether a signature fits
tree       one signature for all receipts of a batch
replay     computing the answer again, many tokens at a time
verify     what is checked of a receipt, in which order
"""
