"""Endpoints about the server: health, status, models, version, documents, the page, the admin
port."""
