"""From a model to ONNX files: which graphs there are, how they are stored, and what lets them ship."""
