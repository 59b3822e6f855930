"""The core of CompileIQ 1.0, a process of its own. In 1.1 there is none.

It dies of a path with a space or a bracket in it, as the folder of ``test_x[0]`` has. CompileIQ then
reads from it without an end. Nor does it reap it, or close the socket to it.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

from compileiq.ciq import Search

from pytest_compileiq.errors import CiqError
from pytest_compileiq.toolchain.acf import is_plain, plain_folder


def cache_folder(folder: Path) -> Path:
    """Where CompileIQ keeps its files: in ``folder``, or in a new one where that cannot be read."""
    if "engine" in Search.model_fields or is_plain(str(folder)):
        return folder / "compileiq"
    return plain_folder()


def watch(search: Search) -> None:
    """Make what the search reads from a dead core an error."""
    ipc = getattr(search, "_core_ipc", None)
    if ipc is None:
        return
    receive = ipc.receive_from_core
    ipc.receive_from_core = lambda line: receive(_Line(line))


def release(search: Search, *, ended: bool) -> None:
    """Close the socket to the core and reap it; with ``ended`` no other one can come."""
    for name in ("_core_socket", "_listen_socket") if ended else ("_core_socket",):
        if open_socket := getattr(search, name, None):
            open_socket.close()
    core = getattr(getattr(search, "_core_ipc", None), "core_process", None)
    if core is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            core.wait(5)


class _Line:
    """A socket that says when there is nobody at its other end."""

    def __init__(self, line: Any) -> None:
        self._line = line

    def recvfrom(self, most: int) -> Any:
        data, address = self._line.recvfrom(most)
        if not data:
            raise CiqError(
                "the core of CompileIQ, which chooses the candidates, has died",
                remedy="see what it wrote to stderr (pytest -s), or take CompileIQ 1.1, which has none",
            )
        return data, address
