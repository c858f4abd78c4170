"""Fills chat templates in a process of its own, which can be stopped.

Jinja's sandbox keeps a template from reaching Python's insides; it can't keep it from looping for
ever or asking for a gigabyte.  A process can: it has a bound on memory and on CPU time, and what
stalls in it holds up nothing else.

wire    what is said over the socket between the two
child   the program that fills templates; imports jinja2 and msgspec and little else
pool    handles on few of them, shared by all templates of a front end; blocking and asyncio

Nothing is imported here: the child would have it too, and asyncio with it.
"""
