"""A plugin for the suites that the tests run: notes of what ran where, limits, environments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_compileiq.isolation.attempt import EnvironmentFor

MAIN = os.getpid()  # pytest, or an xdist worker; a fork leaves the value as it is


def where() -> str:
    return "main" if os.getpid() == MAIN else "child"


def jot(event: object) -> None:
    fd = os.open(os.environ["JOT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{where()} {event}\n".encode())
    os.close(fd)


def kids(pid: int | None = None) -> list[int]:
    """Children of a process, zombies included."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == (pid or os.getpid()):
                found.append(int(name))
    return found


def with_marks(environment_for: EnvironmentFor) -> EnvironmentFor:
    """Add the variables of marks ``env(**variables)``; the closest wins."""

    @contextlib.contextmanager
    def made(item: pytest.Item) -> Iterator[dict[str, str]]:
        with environment_for(item) as variables:
            for mark in reversed(list(item.iter_markers("env"))):
                variables = variables | mark.kwargs
            yield variables

    return made


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): when the isolated process is killed")
    config.addinivalue_line("markers", "env(**variables): what the isolated process gets")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    plugin = session.config.pluginmanager.getplugin("compileiq-isolation")
    if plugin is None:
        return
    default = plugin.timeout_for
    plugin.environment_for = with_marks(plugin.environment_for)
    plugin.timeout_for = lambda item: next(
        (mark.args[0] for mark in item.iter_markers("limit")), default(item)
    )
