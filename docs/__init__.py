"""The documentation: pages for MkDocs, and what makes and checks them."""
