"""What plug-ins bring to a gateway: endpoints, observers of requests, and families of metrics."""
