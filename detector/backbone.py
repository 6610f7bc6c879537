"""The former place of `load_backbone`."""

from detector.backbones import load_backbone

__all__ = ["load_backbone"]
