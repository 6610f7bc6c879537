"""RFID-MoE: compression of routed experts over shared bases, ranks by use and effective rank."""

from moe_core.methods.rfid_moe.method import Settings, run

__all__ = ["Settings", "run"]
