"""Reasons: what the sentences about rejected and repeated pictures have in common."""

import re
from typing import NamedTuple

NEAR_COPY = "near copy of a kept picture"
CONFLICT = "like a kept picture of the other class"

# What a reason says, without its numbers and names; the first pattern found decides.
REASONS: dict[str, str] = {
    r"^conflict:": CONFLICT,
    r"^same bytes as ": "same bytes as a kept picture",
    r"^near copy ": NEAR_COPY,
    r"^its picture stands in split ": "its picture stands in another split",
    r"one colour$": "all one colour",
    r"^contrast ": "too little contrast",
    r"shorter side must be|too small for a ": "too small",
    r"is no exact grid of ": "no exact grid",
    r"^the file is empty": "empty file",
    r"bytes; at most .* are read": "too many bytes",
    r"pixels; at most .* are decoded": "too many pixels",
    r"Git LFS pointer": "Git LFS pointer",
    r"^the bytes are not a picture": "not a picture",
    r"header is damaged": "damaged header",
    r"damaged or cut short": "damaged or cut short",
    r"needs the package|of Pillow cannot decode": "no decoder installed",
    r"^the clone does not hold": "not in the clone",
    r"^the recipe excludes it": "excluded by the recipe",
    r"the decoder crashed": "crashed the decoder",
    r"longer than .* s$": "took too long to decode",
    r"^there is no file|outside the folder": "no such file",
    r"cannot be resolved|has no address": "host not found",
    r"only public ones are fetched|no public address": "address that is not public",
    r"robots\.txt|X-Robots-Tag": "forbidden to robots",
    r"server answered with status (\d)": r"server answered \1xx",
    r"^the server sent .* no picture$": "server sent no picture",
    r"^no complete answer within|^the transfer failed": "transfer failed",
}

# How a sentence about a repeated picture names the kept one: `<path> of <source>`.
OTHER = re.compile(
    r"(?:same bytes as|bits differ\) of|already, as|and (?:real|ai) as) "
    r"(?P<path>.+) of (?P<source>[a-z0-9][a-z0-9-]*)(?:, labelled (?:real|ai))?$",
    re.DOTALL,
)


class Other(NamedTuple):
    """The kept picture that another one repeats."""

    source: str
    path: str


def classify(reason: str) -> str:
    """The kind of a reason; one that no pattern knows loses its numbers and what is quoted or explained."""
    for pattern, name in REASONS.items():
        if found := re.search(pattern, reason):
            return found.expand(name)
    short = re.sub(r"'[^']*'|\"[^\"]*\"|https?://\S+", "…", reason.partition(": ")[0].partition(" (")[0])
    return re.sub(r"\d[\d,.]*", "N", short)[:80]


def other_side(reason: str) -> Other | None:
    """The kept picture that a sentence about a repeated one names; None when it names none."""
    found = OTHER.search(reason)
    return Other(found["source"], found["path"]) if found else None
