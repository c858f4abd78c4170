"""One page for each machine: models of the sizes that people run, the work that they give them, and
Penstock beside other libraries: `python -m loadtest.machine`."""
