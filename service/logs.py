"""The log: one JSON object per line, of named fields only.

What visitors send can hold a prompt: in the picture's metadata, in a file's name, in a URL. So a line
holds fixed sentences, ids and hashes; an exception is logged by its type and where it came from,
without its message, which may quote the input.
"""

import json
import logging
import logging.config
import re
import sys
import time
import traceback
from typing import Any

from service.errors import ServiceError

FIELDS = ("request_id", "who", "method", "route", "status", "seconds", "bytes", "sha256", "job")
OURS = ("omniaid", "uvicorn")
# What generators write around prompts, should one reach a message after all.
PROMPT = re.compile(
    r"""(?P<key>(?:negative[ _]?)?prompt|parameters|workflow|UserComment|description)["']?\s*[:=].*""",
    re.IGNORECASE | re.DOTALL,
)


class JsonLines(logging.Formatter):
    """Records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = describe(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Records for people, with the same care."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        extra = " ".join(f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        line = f"{record.levelname.lower():<8}{redact(record.getMessage())} {extra}".rstrip()
        if record.exc_info and record.exc_info[0] is not None:
            line += " | " + " < ".join(describe(record.exc_info)["at"])
        return line


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonLines, "text": TextLines}


def redact(text: str) -> str:
    """The text without what follows a word that announces a prompt, on one line."""
    return PROMPT.sub(lambda found: f"{found['key']}: [redacted]", text).replace("\n", " ")


def describe(exc_info: Any) -> dict[str, Any]:
    """Type and place of an exception; our own errors for operators keep their sentence."""
    kind, error, trace = exc_info
    frames = traceback.extract_tb(trace)
    described: dict[str, Any] = {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    if isinstance(error, ServiceError):
        described["message"] = str(error)
    return described


def start_logging(format_: str) -> None:
    """Write the log to standard error from now on, warnings of libraries included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[format_]())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    # Its lines hold whole request targets; the service writes its own.
    logging.getLogger("uvicorn.access").disabled = True
