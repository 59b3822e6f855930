"""Just enough of PTX text: its target, its entry functions, and a hash that survives noise."""

from __future__ import annotations

import hashlib
import re

# All of these take time in proportion to the text: PTX of 20 MB is not rare.
_ENTRY = re.compile(r"(?<![\w$.%])\.entry\s+([\w$]+)")
_TARGET = re.compile(r"(?<![\w$.%])\.target\s+(\w+)")
# Strings first: the path in a .file may hold what looks like a comment.
_COMMENT = re.compile(r'("[^"\n]*")|/\*.*?(?:\*/|\Z)|//[^\n]*', re.DOTALL)
_STRING = re.compile(r'"[^"\n]*"')
# Lines that name source files and line numbers. They move when an unrelated line of the source
# moves, or when the checkout lies in another folder, and change no code.
_DEBUG = re.compile(r"^\.(?:loc|file)\b")
_DEBUG_SECTION = re.compile(r"^[ \t]*\.section\s+\.debug\w*\s*\{[^{}]*^[ \t]*\}", re.MULTILINE)


def entries(text: str) -> list[str]:
    """Names of the entry functions, in order, each once."""
    return list(dict.fromkeys(_ENTRY.findall(_code(text))))


def target(text: str) -> str | None:
    """The ``.target``, such as ``sm_90``, or None."""
    match = _TARGET.search(_code(text))
    return match.group(1) if match else None


def _code(text: str) -> str:
    return _STRING.sub('""', _uncommented(text))


def _uncommented(text: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or "", text)


def normalised_sha256(text: str) -> str:
    """SHA-256 of the PTX without comments, debug lines and white space at line ends.

    Two compilations of one kernel from two folders hash alike; a changed instruction does not.
    """
    text = _DEBUG_SECTION.sub("", _uncommented(text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    kept = [line for line in lines if line and not _DEBUG.match(line)]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
