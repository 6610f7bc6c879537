"""Mixture-of-experts parts: tensors in, tensors out."""
