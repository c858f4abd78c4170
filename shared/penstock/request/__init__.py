"""What a request asks for: parameters, output formats, adapters, keys."""
