"""One file, or one sub-package, is one paper and one registered method."""
