"""Dataset builder: image sources to validated, deduplicated WebDataset shards with a manifest."""
