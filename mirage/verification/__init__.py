"""A finished data set checked against its own files."""
