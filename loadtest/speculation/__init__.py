"""What drafted tokens gain: `python -m loadtest.speculation --help`."""
