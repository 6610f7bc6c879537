"""URLs fetched safely and politely, each once."""
