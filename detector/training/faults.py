"""Pictures that could not be used: counted, never replaced."""

from dataclasses import dataclass, field
from typing import Any

from detector.training.engine import Engine


@dataclass
class Faults:
    """Pictures that could not be used: by key, why and how often."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, key: str, reason: str, times: int = 1) -> None:
        """Count one more."""
        entry = self.found.setdefault(key, {"reason": reason, "times": 0})
        entry["times"] += times

    def merged(self, engine: Engine) -> dict[str, dict[str, Any]]:
        """Those of all processes."""
        total = Faults()
        for key, entry in engine.gather(sorted(self.found.items())):
            total.add(key, **entry)
        return dict(sorted(total.found.items()))
