"""Who made what in a C2PA manifest store: the active manifest, what it was made from, what went into it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from detector.evidence.source_types import CLAIMS, short_name

MAX_MANIFESTS = 100
MAX_DEPTH = 12
AI = {"made_by_ai", "edited_with_ai"}


@dataclass(frozen=True)
class Origin:
    """One source type of a store.

    Attributes:
        name: of the vocabulary, e.g. "trainedAlgorithmicMedia".
        role: "active" (the signer speaks of this picture), "edit" (of a step after something was
            opened), "parent" (of what the picture was made from) or "component" (of a part of it).
    """

    name: str
    role: str

    @property
    def is_partial_ai(self) -> bool:
        """Whether it says that AI made a part and not the whole."""
        return self.role in ("edit", "component") and CLAIMS[self.name][0] in AI


def mapping(value: Any) -> dict[str, Any]:
    """`value` when it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def trace(manifests: dict[str, Any], active: str, broken: set[str]) -> list[Origin]:
    """The source types of a store without repetition, the active manifest's first.

    Args:
        manifests: label -> manifest, as the library reports them.
        active: label of the active manifest.
        broken: labels of manifests that do not validate; nothing is read from them.
    """
    queue, seen, found = [(active, "active")], {active}, []
    while queue and len(seen) <= MAX_MANIFESTS:
        label, role = queue.pop(0)
        manifest = mapping(manifests.get(label))
        found += list(_origins(manifest, role))
        for entry in map(mapping, manifest.get("ingredients") or []):
            child = str(entry.get("active_manifest"))
            if child in manifests and child not in seen and child not in broken:
                seen.add(child)
                is_parent = entry.get("relationship") == "parentOf" and role != "component"
                queue.append((child, "parent" if is_parent else "component"))
    return list(dict.fromkeys(found))


def list_actions(manifest: dict[str, Any]) -> Iterator[str]:
    """The names of a manifest's actions, in order."""
    for action in _actions(manifest):
        yield str(action.get("action"))


def _actions(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for assertion in map(mapping, manifest.get("assertions") or []):
        if str(assertion.get("label", "")).startswith("c2pa.actions"):
            for action in mapping(assertion.get("data")).get("actions") or []:
                yield mapping(action)


def _origins(manifest: dict[str, Any], role: str) -> Iterator[Origin]:
    """Source types of one manifest; those of its actions first."""
    opened = "c2pa.opened" in list_actions(manifest)
    for action in _actions(manifest):
        later_step = opened and action.get("action") != "c2pa.created"
        for name in _names(action):
            yield Origin(name, "edit" if later_step and role == "active" else role)
    for assertion in map(mapping, manifest.get("assertions") or []):
        if not str(assertion.get("label", "")).startswith("c2pa.actions"):
            for name in _names(assertion):
                yield Origin(name, role)


def _names(node: Any) -> Iterator[str]:
    for value in _values(node, "digitalsourcetype", MAX_DEPTH):
        name = short_name(value)
        if name is not None:
            yield name


def _values(node: Any, ending: str, depth: int) -> Iterator[str]:
    """Texts under keys that end in `ending`, whatever their namespace."""
    if depth == 0:
        return
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str) and str(key).lower().endswith(ending):
                yield value
            else:
                yield from _values(value, ending, depth - 1)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, ending, depth - 1)
