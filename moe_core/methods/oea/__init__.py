"""OEA: decode rerouting towards experts that the batch has already loaded."""

from moe_core.methods.oea.method import Settings, run
from moe_core.methods.oea.rerouting import Activity, Rerouting, enable, remember, simulate

__all__ = ["Activity", "Rerouting", "Settings", "enable", "remember", "run", "simulate"]
