"""How two cells behind a load balancer bear the loss of one: `python -m loadtest.lost_cell`."""
