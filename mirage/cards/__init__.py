"""What a person reads of a data set: numbers, plots, card and page."""
