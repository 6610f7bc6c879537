"""ME: an ensemble of language models that runs one of them per token."""

from moe_core.methods.me.ensemble import Ensemble, load
from moe_core.methods.me.generation import Sampling, Stats, Written
from moe_core.methods.me.method import Settings, run
from moe_core.methods.me.vocabulary import Translator

__all__ = ["Ensemble", "Sampling", "Settings", "Stats", "Translator", "Written", "load", "run"]
