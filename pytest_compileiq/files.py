"""Files of the user: read with care, and written so that nobody ever sees half of one."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

#: No ACF, sidecar or PTX comes near it; what is larger was named by mistake.
LARGEST = 64 * 2**20


_LFS = b"version https://git-lfs.github.com/spec"


class LfsPointerError(OSError):
    """git-lfs left its pointer in the place of the file."""


def read_plain(path: Path) -> bytes:
    """The content of a regular file. Raises OSError for a pipe, a device or a huge file.

    A pipe would block for ever and a device never end, so the kind is looked at first.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a NUL in the path
        raise OSError(22, str(error)) from None
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    if not os.path.isfile(path):
        raise OSError(22, "it is not a regular file")
    if found.st_size > LARGEST:
        raise OSError(27, f"it has {found.st_size} bytes, more than any ACF or PTX")
    return no_pointer(path.read_bytes())


def beside(path: Path, suffix: str) -> str:
    """What of its kind lies in the folder of a file that is not there, for a message."""
    names = sorted(entry.name for entry in path.parent.glob(f"*{suffix}"))
    return f"{path.parent}: {', '.join(names) or f'no *{suffix} file in it'}"


def no_pointer(content: bytes) -> bytes:
    """The content itself. Raises LfsPointerError where it is git-lfs's."""
    if content.startswith(_LFS):
        said = f"it is a git-lfs pointer of {len(content)} bytes; run `git lfs pull`"
        raise LfsPointerError(22, said)
    return content


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace ``path`` by ``content``; on any failure the old file stays as it was.

    A link is followed, and a device or pipe (``/dev/null``) is written to, not replaced.
    Raises OSError when the folder cannot be written.
    """
    path = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes it private, and a new file is to be shared.
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
