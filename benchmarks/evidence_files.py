"""Where the evidence benchmark's files come from, and what all its sections share."""

import csv
import io
import re
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from detector.evidence import FileEvidence

SUFFIXES = re.compile(
    r"\.(jpe?g|jpe|jfif|mpo|a?png|gif|webp|avifs?|hei[cf]|hif|tiff?|btf|dng|nef|cr2|orf|bmp|jp2|j2k|p[gpbn]m|psd|ico|pict?|pcx|tga)$",
    re.IGNORECASE,
)
AI = {"made_by_ai", "edited_with_ai"}


class Clone:
    """A bare clone, read through one git process."""

    def __init__(self, mirrors: Path, repo: str) -> None:
        folder = mirrors / repo.replace("/", "+") / "repo"
        self.git = ["git", f"--git-dir={folder / '.git' if (folder / '.git').exists() else folder}"]
        self.pipe = subprocess.Popen(
            [*self.git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def paths(self) -> list[str]:
        """Every path of the newest revision."""
        listed = subprocess.run(
            [*self.git, "ls-tree", "-rz", "--name-only", "HEAD"], capture_output=True, check=True
        )
        return [name.decode("utf-8", "replace") for name in listed.stdout.split(b"\0") if name]

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None when the clone lacks it or it is a pointer to large storage."""
        if "\n" in path or self.pipe.stdin is None or self.pipe.stdout is None:
            return None
        self.pipe.stdin.write(f"HEAD:{path}\n".encode())
        self.pipe.stdin.flush()
        head = self.pipe.stdout.readline().split()
        if len(head) != 3 or head[1] != b"blob":
            return None
        data = self.pipe.stdout.read(int(head[2]))
        self.pipe.stdout.read(1)
        return None if data.startswith(b"version https://git-lfs") else data


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a tab-separated table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def claims(evidence: FileEvidence) -> set[str]:
    """What the file claims, without what is void or a hint."""
    return {row.claim for row in evidence.findings if row.confidence not in ("void", "hint")}


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """One PNG chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def xmp_bytes() -> bytes:
    """An XMP packet that states trainedAlgorithmicMedia."""
    return (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        b'<rdf:Description xmlns:e="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" e:DigitalSourceType='
        b'"http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"/></rdf:RDF></x:xmpmeta>'
    )


def picture(codec: str, seed: int = 0, side: int = 48) -> bytes:
    """A small picture of noise, encoded."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, codec)
    return buffer.getvalue()
