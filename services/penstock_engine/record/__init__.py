"""Recording what an engine core is told, and replaying it.

known       the classes that a snapshot may hold
snapshot    a core's whole state as bytes; restore: the way back
events      the core's event methods, and how their arguments are read back
decisions   what a step decided, as digests and a summary
redaction   what must not be written
framing     records in a file, each with its length and checksum
writer      a bounded, rotating set of files, written by a thread of its own
recorder    a core that writes down all that it is told
replay      feeds a file to the production core and compares
"""
