"""Just enough of PTX text: its target, its entry functions, and a hash that survives noise."""

from __future__ import annotations

import hashlib
import re

_ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+([\w]+)", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# Lines that name source files and line numbers. They move when an unrelated line of the source
# moves, or when the checkout lies in another folder, and change no code.
_DEBUG = re.compile(r"^\.(?:loc|file)\b")
_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.DOTALL | re.MULTILINE)


def entries(text: str) -> list[str]:
    """Names of the entry functions, in order, each once."""
    return list(dict.fromkeys(_ENTRY.findall(_COMMENT.sub("", text))))


def target(text: str) -> str | None:
    """The ``.target``, such as ``sm_90``, or None."""
    match = _TARGET.search(_COMMENT.sub("", text))
    return match.group(1) if match else None


def normalised_sha256(text: str) -> str:
    """SHA-256 of the PTX without comments, debug lines and white space at line ends.

    Two compilations of one kernel from two folders hash alike; a changed instruction does not.
    """
    text = _DEBUG_SECTION.sub("", _COMMENT.sub("", text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    kept = [line for line in lines if line and not _DEBUG.match(line)]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
