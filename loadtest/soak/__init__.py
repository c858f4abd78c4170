"""Many streams at once for a long time, through haproxy and several gateways."""
