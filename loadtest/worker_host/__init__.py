"""What a decode step costs the worker's host on a GPU machine, measured without a GPU."""
