"""Training on the pixels themselves: streamed, augmented anew at every visit, on any number of devices."""
