"""Receipts: what an answer was computed from, signed, and how somebody else finds out whether it
was.

statement  what a receipt says, and how one is read
signing    the server's key, and whether a signature fits
desk       writes the receipts of a gateway's answers; batch signs those of a batch together
tree       one signature for all receipts of a batch
endpoint   tells the public key
replay     computing the answer again, many tokens at a time
verify     what is checked of a receipt, in which order; command is `penstock verify`
"""
