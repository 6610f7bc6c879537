"""R3: the routing of a rollout, recorded and replayed where the same tokens are trained on."""

from moe_core.methods.r3.divergence import Divergence, divergence, full_divergence
from moe_core.methods.r3.method import Settings, run
from moe_core.methods.r3.replay import Recorder, record, replay
from moe_core.methods.r3.trace import Trace, from_vllm, load_trace

__all__ = [
    "Divergence",
    "Recorder",
    "Settings",
    "Trace",
    "divergence",
    "from_vllm",
    "full_divergence",
    "load_trace",
    "record",
    "replay",
    "run",
]
