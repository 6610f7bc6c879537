"""Small language models trained here on text that every installation has, for benchmarks and tests."""
