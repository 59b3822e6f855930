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
# What names source files and line numbers. It moves when an unrelated line of the source moves, or
# when the checkout lies in another folder, and changes no code. A directive ends without a sign, so
# an instruction may stand behind it.
_DEBUG = re.compile(
    r"""(?<![\w$.%])(?:
        \.section\s+\.debug\w*\s*\{[^{}]*\}
        | \.file\s+\d+\s+"[^"\n]*"(?:\s*,\s*\d+\s*,\s*\d+)?
        | \.loc(?:\s+\d+){3}
          (?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at(?:\s+\d+){3})?
    )""",
    re.VERBOSE,
)
_LABEL = re.compile(r"[\w$]+:")
_NAME = re.compile(r"(?<![\w$.%])[A-Za-z_$][\w$]*")
# nvcc's names for what is internal to one file hold a hash of the path of that file.
_ID_OF_PATH = re.compile(r"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}(?=_)")


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
    """SHA-256 of the PTX without comments, debug information and white space at line ends.

    Two compilations of one kernel from two folders hash alike, with line information and without
    it; a changed instruction does not. Labels that only debug information names are a part of it.
    """
    text = _ID_OF_PATH.sub(r"\1", _DEBUG.sub(" ", _uncommented(text)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    labels = {line for line in lines if _LABEL.fullmatch(line)}
    code = (line for line in lines if line not in labels)
    named = {f"{name}:" for line in code for name in _NAME.findall(line)}
    unused = labels - named
    kept = [line for line in lines if line and line not in unused]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
