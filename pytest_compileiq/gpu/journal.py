"""What a guardian is about to lock, on disk before it does: the next one can undo it.

One file per physical GPU beside its lease, ``<uuid>.json``, written whole and synced. NVML has no
getter for a lock, so this is the only record that one may be there. All functions take the file
descriptor of the lease folder, which ``lease`` has checked, so no path is looked up twice.
"""

from __future__ import annotations

import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
#: How a journal that was found is to be read.
VALID, CORRUPT, FOREIGN, OTHER_BOOT = "valid", "corrupt", "foreign", "other-boot"
_LIMIT = 65536


def name(uuid: str) -> str:
    return f"{uuid}.json"


def boot_id() -> str:
    """Changes at each boot, and a boot ends every lock; empty when the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def write(folder: int, uuid: str, content: dict[str, Any]) -> None:
    """Put a journal in place of the former one. Raises OSError."""
    text = json.dumps({"version": VERSION, "boot_id": boot_id(), "uuid": uuid, **content})
    temporary = f".{name(uuid)}.{os.getpid()}"
    _unlink(folder, temporary)  # of a killed process that had our PID
    # Exclusively: whoever may write here could have put another name of a precious file there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            data = text.encode()
            while data:  # a disk that is nearly full takes a part, and refuses the rest only then
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, name(uuid), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink(folder, temporary)
        raise
    os.fsync(folder)


def read(folder: int, uuid: str) -> tuple[str, dict[str, Any]] | None:
    """The journal of a GPU as (VALID and so on, content), or None when there is none.

    FOREIGN: the file is another user's, or no plain file; nothing in it is believed.
    """
    try:
        # A pipe in its place would block the open for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(name(uuid), flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError:
        return FOREIGN, {}
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
            return FOREIGN, {"uid": about.st_uid}
        text = os.read(file, _LIMIT)
    finally:
        os.close(file)
    try:
        content = json.loads(text)
        domains = {str(key): list(value) for key, value in content["domains"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return CORRUPT, {}
    if content.get("version") != VERSION or not domains:
        return CORRUPT, {}  # what it says of the clocks is not for us to interpret
    content["domains"] = domains
    if content.get("boot_id") != boot_id():
        return OTHER_BOOT, content
    return VALID, content


def remove(folder: int, uuid: str) -> None:
    """Take the journal away; no error when it is not there. Raises OSError otherwise."""
    if _unlink(folder, name(uuid)):
        os.fsync(folder)


def _unlink(folder: int, file: str) -> bool:
    try:
        os.unlink(file, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True
