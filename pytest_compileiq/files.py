"""Write a file in one step, so that no reader and no interruption ever sees half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``; on any failure the old file stays as it was.

    Raises OSError when the folder cannot be written.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes it private, and the file is to be shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
