"""What many open requests see of an engine core that dies, and of processes that stand still.

front      the front end, in a process of its own     parts     processes that can be killed
samples    what is read off the front end's words     report    the table
"""
