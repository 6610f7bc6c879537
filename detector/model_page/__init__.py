"""The generated page of a model: its card in words, tables and plots."""
