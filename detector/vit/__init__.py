"""One pre-norm Vision Transformer for every backbone, with low-rank experts on its projections."""

from detector.vit.layers import quick_gelu
from detector.vit.shapes import ExpertConfig, TrunkConfig
from detector.vit.trunk import Readout, SharedTokens, Trunk
from detector.vit.weights import check_weights, weight_shapes

__all__ = [
    "ExpertConfig",
    "Readout",
    "SharedTokens",
    "Trunk",
    "TrunkConfig",
    "check_weights",
    "quick_gelu",
    "weight_shapes",
]
