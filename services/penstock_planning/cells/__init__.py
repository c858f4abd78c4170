"""Cells of engine cores behind a load balancer, under a virtual clock."""
