"""One page for each machine: models that people run, by Penstock and by other libraries."""
