"""File names and file troubles in words that are safe to print and to store."""

import os
import re
from pathlib import Path

UNDECODED_BYTE = re.compile("[\udc80-\udcff]")  # how Python keeps a byte of a name that is not UTF-8


def printable(path: str | os.PathLike[str]) -> str:
    """`path` as valid Unicode; bytes that are not UTF-8 become \\xNN."""
    text = UNDECODED_BYTE.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", os.fspath(path))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible(text: str) -> str:
    """`text` on one line without control characters, so that a file name cannot drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def reason(error: OSError | ValueError) -> str:
    """What the system said, in lower case and without the path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]


def why_unreadable(error: OSError | ValueError, path: Path) -> str:
    """Why `path` could not be read, as one sentence that does not repeat it."""
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"the symbolic link points to {printable(path.readlink())}, which does not exist"
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if isinstance(error, PermissionError):
        return "permission to read the file was denied"
    return f"the file cannot be read: {reason(error)}"
