"""DOT-MoE: experts out of a dense GLU by learning the split and the router together."""

from moe_core.methods.dot_moe.method import Settings, run
from moe_core.methods.dot_moe.splitting import MaskedGlu

__all__ = ["MaskedGlu", "Settings", "run"]
