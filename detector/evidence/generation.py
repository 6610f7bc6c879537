"""Generation parameters that picture generators leave in metadata, recognised by structure, not by words."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from detector.evidence.carriers import Metadata
from detector.evidence.findings import EvidenceOptions, Finding, Place
from detector.evidence.prompts import Parameters, read_with_sd_parsers

MAX_JSON_BYTES = 2 * 2**20
A1111_LINE = re.compile(r"Steps: \d{1,5}, (?:Sampler|Schedule type|CFG scale|Seed|Size): ?")
GRAPH_TAG = re.compile(r"(prompt|workflow):\s*(?=[{\[])", re.IGNORECASE)
MIDJOURNEY_JOB = re.compile(r"Job ID: [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
DREAM = re.compile(r'"[^"]{1,20000}" -s ?\d+')

Fields = dict[str, str]


def find_generation(metadata: Metadata, options: EvidenceOptions) -> list[Finding]:
    """One row per carrier whose texts are the parameters of a known generator."""
    rows = []
    for fields, places in _carriers(metadata):
        for tool, (field, recognise) in RECOGNISERS.items():
            keys = [key for key in field if key in fields]
            if not keys or not recognise(fields):
                continue
            parameters = read_with_sd_parsers(tool, fields) or _own_reading(tool, fields)
            rows.append(_finding(tool, keys[0], places[keys[0]], parameters, options))
            break
    return rows


def _finding(tool: str, key: str, place: Place, parameters: Parameters, options: EvidenceOptions) -> Finding:
    details: dict[str, Any] = {"tool": tool, "field": key, **parameters}
    if options.redact_prompts:
        details = {name: redact(value) if name in PROMPTS else value for name, value in details.items()}
    return Finding(
        kind="generation",
        claim="made_by_ai",
        confidence="stated",
        text=f"{key} holds generation parameters of {tool}",
        place=place,
        details=details,
    )


PROMPTS = ("prompt", "negative_prompt")


def redact(text: Any) -> dict[str, Any]:
    """Length and sha256 of a prompt, enough to recognise it and not to read it."""
    raw = str(text).encode("utf-8", "surrogatepass")
    return {"length": len(str(text)), "sha256": hashlib.sha256(raw).hexdigest()}


def _carriers(metadata: Metadata) -> list[tuple[Fields, dict[str, Place]]]:
    """Texts by key, apart for PNG texts, each EXIF block and each XMP packet."""
    carriers: list[tuple[Fields, dict[str, Place]]] = []
    texts: Fields = {}
    places: dict[str, Place] = {}
    for text in metadata.texts:
        texts.setdefault(text.key, text.value)
        places.setdefault(text.key, text.place)
    carriers.append((texts, places))
    for exif, place in metadata.exif:
        fields = {"UserComment": exif.comment} if exif.comment else {}
        for value in exif.texts.values():
            if match := GRAPH_TAG.match(value):
                fields[match[1].lower()] = value[match.end() :]
        carriers.append((_unpack(fields), dict.fromkeys(_unpack(fields), place)))
    for packet, place in metadata.xmp:
        comment = packet.first("exif:UserComment")
        fields = {"UserComment": comment, "CreatorTool": packet.first("xmp:CreatorTool")} if comment else {}
        fields |= {"Description": packet.first("dc:description")} if packet.first("dc:description") else {}
        carriers.append((_unpack(fields), dict.fromkeys(_unpack(fields), place)))
    return carriers


def _unpack(fields: Fields) -> Fields:
    """A user comment is what A1111 and its kin call `parameters`; some graphs stand in it as JSON."""
    comment = fields.get("UserComment", "")
    unpacked = {"parameters": comment, **fields} if comment else dict(fields)
    graph = _json(comment)
    if isinstance(graph, dict):
        unpacked |= {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in graph.items()
            if key in ("prompt", "workflow")
        }
    return unpacked


def _json(text: str | None) -> Any:
    """The parsed JSON object or array, or None."""
    if not text or len(text) > MAX_JSON_BYTES or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _holds(text: str | None, *keys: str) -> bool:
    parsed = _json(text)
    return isinstance(parsed, dict) and all(key in parsed for key in keys)


def _is_comfy(fields: Fields) -> bool:
    graph = _json(fields.get("prompt"))
    nodes = list(graph.values()) if isinstance(graph, dict) else []
    if nodes and all(isinstance(node, dict) and "class_type" in node and "inputs" in node for node in nodes):
        return True
    workflow = _json(fields.get("workflow"))
    drawn = workflow.get("nodes") if isinstance(workflow, dict) else None
    return (
        isinstance(drawn, list)
        and bool(drawn)
        and all(isinstance(node, dict) and "type" in node for node in drawn)
    )


def _is_fooocus(fields: Fields) -> bool:
    return "fooocus_scheme" in fields or _holds(fields.get("parameters"), "base_model", "sampler", "prompt")


def _is_invoke(fields: Fields) -> bool:
    return (
        isinstance(_json(fields.get("invokeai_metadata")), dict)
        or _holds(fields.get("sd-metadata"), "image")
        or isinstance(_json(fields.get("invokeai_graph")), dict)
        or bool(DREAM.match(fields.get("Dream", "")))
    )


def _is_novel(fields: Fields) -> bool:
    return fields.get("Software") == "NovelAI" and _holds(fields.get("Comment"), "sampler")


def _is_drawthings(fields: Fields) -> bool:
    comment = fields.get("UserComment")
    return _holds(comment, "c", "sampler") or _holds(comment, "c", "seed", "steps")


def _is_easy(fields: Fields) -> bool:
    return "use_stable_diffusion_model" in fields and "prompt" in fields


# Tool -> (fields that can hold its parameters, whether they do). Order matters: the narrow ones first.
RECOGNISERS: dict[str, tuple[tuple[str, ...], Callable[[Fields], bool]]] = {
    "NovelAI": (("Comment",), _is_novel),
    "InvokeAI": (("invokeai_metadata", "sd-metadata", "Dream", "invokeai_graph"), _is_invoke),
    "Draw Things": (("UserComment",), _is_drawthings),
    "SwarmUI": (("parameters",), lambda fields: _holds(fields.get("parameters"), "sui_image_params")),
    "Fooocus": (("parameters",), _is_fooocus),
    "AUTOMATIC1111": (("parameters",), lambda fields: bool(A1111_LINE.search(fields.get("parameters", "")))),
    "ComfyUI": (("prompt", "workflow"), _is_comfy),
    "Easy Diffusion": (("prompt",), _is_easy),
    "Midjourney": (
        ("Description",),
        lambda fields: bool(MIDJOURNEY_JOB.search(fields.get("Description", ""))),
    ),
}


def _own_reading(tool: str, fields: Fields) -> Parameters:
    """Prompt and settings of the generators that sd-parsers does not know, or the raw text without it."""
    if tool == "Draw Things":
        parsed = _json(fields["UserComment"])
        return {
            "prompt": str(parsed.get("c", "")),
            "negative_prompt": str(parsed.get("uc", "")),
            "model": str(parsed.get("model", "")),
            "seed": str(parsed.get("seed", "")),
        }
    if tool == "SwarmUI":
        settings = _json(fields["parameters"])["sui_image_params"]
        settings = settings if isinstance(settings, dict) else {}
        return {
            "prompt": str(settings.get("prompt", "")),
            "negative_prompt": str(settings.get("negativeprompt", "")),
            "model": str(settings.get("model", "")),
            "seed": str(settings.get("seed", "")),
        }
    if tool == "Easy Diffusion":
        return {
            "prompt": fields["prompt"],
            "negative_prompt": fields.get("negative_prompt", ""),
            "model": fields["use_stable_diffusion_model"][:200],
            "seed": fields.get("seed", "")[:40],
        }
    names = RECOGNISERS[tool][0]
    return {"prompt": "\n".join(fields[name] for name in names if name in fields)[:65536]}
