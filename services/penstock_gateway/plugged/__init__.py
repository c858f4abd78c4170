"""What plug-ins bring to a gateway."""
