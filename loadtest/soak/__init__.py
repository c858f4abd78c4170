"""Many streams at once for a long time, through haproxy and several gateways.

words        what a stream says, so that its reader can tell whether it has all of it
null_worker  a worker that computes nothing, at an even pace
system       engine core, null worker, gateways and haproxy as processes
client       keeps so many streams open, and checks each
memory       RSS of the processes, second by second
report       the figures as Markdown and as a chart
"""
