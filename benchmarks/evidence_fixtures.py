"""Found / expected on real fixtures, and on valid files that were tampered with."""

import io
import json
import re
import struct
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from evidence_files import AI, SUFFIXES, Clone, claims, picture, png_chunk, rows, xmp_bytes
from PIL import Image

from detector.evidence import EvidenceOptions, FileEvidence, examine
from detector.evidence.containers import walk


class Tally:
    """Found / expected per kind, with the files that were missed."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.missed: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, name: str, as_expected: bool) -> None:
        """Counts one file under `kind`."""
        self.counts[kind][0] += as_expected
        self.counts[kind][1] += 1
        if not as_expected:
            self.missed[kind].append(name)

    def table(self) -> list[dict[str, Any]]:
        """The counts as rows."""
        return [
            {"kind": kind, "as_expected": good, "files": total, "missed": self.missed[kind][:20]}
            for kind, (good, total) in sorted(self.counts.items())
        ]


def read(data: bytes) -> FileEvidence:
    """The evidence outside the pixels, which is all that these files are about."""
    return examine(data, EvidenceOptions(pixels=False))


def state(evidence: FileEvidence) -> str:
    """The credential's state, or `none`."""
    return evidence.credential.state if evidence.credential else "none"


def measure_fixtures(mirrors: Path, tables: Path) -> dict[str, Any]:
    """The table found / expected, and credential states by source."""
    tally, states = Tally(), Counter()
    seeds: list[tuple[str, bytes]] = []
    public_testfiles(mirrors, tally, states)
    marked_files(mirrors, tables, tally, states, seeds)
    parameter_fixtures(mirrors, tally, seeds)
    comfy_galleries(mirrors, tables, tally)
    tampered(seeds, tally)
    return {
        "table": tally.table(),
        "states": {f"{name}: {value}": n for (name, value), n in sorted(states.items())},
    }


def public_testfiles(mirrors: Path, tally: Tally, states: Counter) -> None:
    """The file names say what was done: E-* and X* were damaged on purpose, A and I have no manifest."""
    clone = Clone(mirrors, "c2pa-org/public-testfiles")
    for path in clone.paths():
        data = clone.read(path) if SUFFIXES.search(path) else None
        if data is None:
            continue
        evidence = read(data)
        recipe = Path(path).stem.removeprefix("adobe-20220124-")
        if "/manifests/" in path or recipe in ("A", "I"):
            tally.add(
                "C2PA test files without a manifest: none reported",
                path,
                state(evidence) in ("none", "remote"),
            )
        elif recipe.startswith(("E-", "X")):
            tally.add("C2PA test files, tampered: invalid", path, state(evidence) == "invalid")
            tally.add(
                "tampered: no claim of AI or capture",
                path,
                not claims(evidence) & (AI | {"captured"}) or camera_only(evidence),
            )
        else:
            states["c2pa-org/public-testfiles", state(evidence)] += 1
            tally.add("C2PA test files, valid: signature holds", path, state(evidence) in HOLDS)


HOLDS = {"trusted", "valid", "unknown_signer", "expired"}


def camera_only(evidence: FileEvidence) -> bool:
    """Whether claims come from plain camera metadata alone, which tampering with a manifest leaves true."""
    return all(row.kind == "camera" for row in evidence.findings if row.claim in AI | {"captured"})


def marked_files(mirrors: Path, tables: Path, tally: Tally, states: Counter, seeds: list) -> None:
    """Files whose markers were listed by another program."""
    clones: dict[str, Clone] = {}
    for row in rows(tables / "provenance_markers.tsv"):
        repo, path = row["repo"], row["path"]
        if not (mirrors / repo.replace("/", "+")).exists():
            tally.add(f"not mirrored: {repo}", path, False)
            continue
        clone = clones.setdefault(repo, Clone(mirrors, repo))
        data = clone.read(path)
        if data is None:
            tally.add("named in the table but not in the clone", f"{repo} {path}", False)
            continue
        evidence = read(data)
        if row["c2pa"] == "1":
            tally.add(f"C2PA found: {repo}", path, state(evidence) != "none")
            states[repo, state(evidence)] += 1
            if state(evidence) in HOLDS and len(seeds) < 60:
                seeds.append((f"{repo} {path}", data))
        if row["trainedAlgorithmicMedia"] == "1" and state(evidence) not in ("invalid", "unreadable"):
            tally.add(f"trainedAlgorithmicMedia read: {repo}", path, "made_by_ai" in claims(evidence))
        elif row["trainedAlgorithmicMedia"] == "1":
            tally.add(f"invalid credential, its claim withheld: {repo}", path, not claims(evidence) & AI)
        if "Made with Google AI" in row["agents"]:
            tag = any(finding.kind == "made_with" for finding in evidence.findings)
            tally.add("Made with Google AI read", path, tag)


TOOLS = ("AUTOMATIC1111", "ComfyUI", "Fooocus", "InvokeAI", "NovelAI")


def parameter_fixtures(mirrors: Path, tally: Tally, seeds: list) -> None:
    """The folder of each fixture names the generator."""
    clone = Clone(mirrors, "d3x-at/sd-parsers")
    for path in clone.paths():
        tool = next((name for name in TOOLS if f"parsers/{name}/" in path), None)
        data = clone.read(path) if SUFFIXES.search(path) else None
        if data is None:
            continue
        evidence = examine(data)
        found = [row.details for row in evidence.findings if row.kind in ("generation", "watermark")]
        if tool is None:
            expected = "text_after_idat" in path
            tally.add(
                "sd-parsers odd files: parameters only where there are some", path, bool(found) == expected
            )
            continue
        tally.add(f"parameters of {tool}", path, bool(found) and found[0]["tool"] == tool)
        tally.add("prompt read", path, bool(found) and bool(found[0].get("prompt")))
        seeds.append((path, data))


def comfy_galleries(mirrors: Path, tables: Path, tally: Tally) -> None:
    """Expected: what Pillow's own PNG reader holds under the keys that ComfyUI writes."""
    for row in rows(tables / "sources.tsv"):
        if row["role"] != "metadata" or "ComfyUI" not in row["generator_or_kind"]:
            continue
        clone = Clone(mirrors, row["repo"])
        for path in clone.paths():
            if not re.search(row["select"].removeprefix("re:"), path) or not path.lower().endswith(
                (".png", ".jpg", ".webp")
            ):
                continue
            data = clone.read(path)
            if data is None:
                continue
            expected = pillow_graph(data)
            found = any(item.kind == "generation" for item in read(data).findings)
            kind = "workflow read" if expected else "no workflow, none claimed"
            tally.add(f"ComfyUI gallery {row['repo']}: {kind}", path, found == expected)


def pillow_graph(data: bytes) -> bool:
    """Whether Pillow finds a JSON graph under the keys that ComfyUI writes."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            texts = [image.info.get(key) for key in ("workflow", "prompt")]
    except Exception:
        return False
    for text in texts:
        try:
            parsed = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and parsed:
            return True
    return False


def tampered(seeds: list[tuple[str, bytes]], tally: Tally) -> None:
    """Valid files changed in ways that must cost them their claim."""
    chunk = png_chunk(
        b"tEXt", b"parameters\0a cat\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 512x512"
    )
    plain = {"JPEG": picture("JPEG"), "PNG": picture("PNG"), "WEBP": picture("WEBP"), "GIF": picture("GIF")}
    for name, data in plain.items():
        marked = [("a PNG text chunk appended", data + chunk), ("XMP appended", data + xmp_bytes())]
        for what, changed in marked:
            evidence = read(changed)
            good = not claims(evidence) & AI and any(
                row.kind in ("stray", "container") for row in evidence.warnings
            )
            tally.add(f"{what}: a warning, no claim", name, good)
    jpeg = plain["JPEG"]
    comment = jpeg[:2] + b"\xff\xfe" + struct.pack(">H", 2 + len(xmp_bytes())) + xmp_bytes() + jpeg[2:]
    evidence = read(comment)
    tally.add(
        "XMP in a JPEG comment: a warning, no claim",
        "own",
        not claims(evidence) & AI and bool(evidence.warnings),
    )
    for name, data in seeds:
        if data.startswith(b"\x89PNG") and b"tEXt" in data and "parsers/" in name and "stealth" not in name:
            tally.add(
                "PNG text with a wrong checksum: no claim", name, not claims(read(break_text(data))) & AI
            )
        elif "parsers/" not in name:
            evidence = read(flip_pixels(data))
            good = state(evidence) in ("invalid", "unreadable") and not (
                claims(evidence) & AI and only_credential(evidence)
            )
            tally.add("C2PA file with one changed byte of pixel data: invalid, no claim", name, good)


def only_credential(evidence: FileEvidence) -> bool:
    """Whether a credential row claims AI."""
    return any(row.kind == "credential" and row.claim in AI for row in evidence.findings)


def flip_pixels(data: bytes) -> bytes:
    """The file with one byte changed in its coded pixels, far from every header."""
    layout = walk(data)
    names = ("scan data", "IDAT", "VP8", "VP8L", "VP8X", "mdat", "frame")
    part = max((part for part in layout.parts if part.name in names), key=lambda part: part.length)
    at = part.start + (part.stop - part.start) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def break_text(data: bytes) -> bytes:
    """The PNG with every text chunk's checksum changed."""
    pieces, position = [data[:8]], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        chunk = data[position : position + 12 + length]
        bad = chunk[4:8] in (b"tEXt", b"zTXt", b"iTXt")
        pieces.append(chunk[:-1] + bytes([chunk[-1] ^ 255]) if bad else chunk)
        position += 12 + length
    return b"".join(pieces)
