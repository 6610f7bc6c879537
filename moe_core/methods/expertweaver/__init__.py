"""ExpertWeaver: experts out of a dense GLU by how its neurons act on samples, without training."""

from moe_core.methods.expertweaver.method import Settings, run
from moe_core.methods.expertweaver.weaving import Weave, weave

__all__ = ["Settings", "Weave", "run", "weave"]
