"""What a release is made of, and how it is published: docs/guides/releasing.md."""
