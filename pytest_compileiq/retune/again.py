"""A search for a kernel that is timed: each candidate's process runs the test again.

What a kernel needs on a GPU (tensors, a context, a check) cannot be handed to another process,
and a process that has started CUDA cannot be forked. So a process is forked before the test's
fixtures are made. When the test has failed, a child of it runs the search, and each candidate's
process makes the fixtures and comes to the same call of ``ciq``, which answers with the score.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

import pytest

from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child, messages, probes
from pytest_compileiq.isolation.contain import one_line
from pytest_compileiq.isolation.messages import Kind
from pytest_compileiq.isolation.zygote_client import LostError, NotStartedError, ZygoteClient
from pytest_compileiq.retune.hunt import Found, Hunt
from pytest_compileiq.retune.scores import Answered, Candidate

#: What the process of a candidate has to answer.
CANDIDATE: pytest.StashKey[Candidate] = pytest.StashKey()
#: Seconds that the search's process gets beyond the search's own limit.
_GRACE = 60.0
#: Of the time that is left to an isolated test: more would end it before it can tell.
_OF_TEST = 0.95


def stand_by(item: pytest.Item) -> Again | None:
    """The process beside a test; None where none can be had, which only a search has to tell."""
    with contextlib.suppress(OSError, LostError):
        return Again(item)
    return None


class Again:
    """The process beside one test, forked before its fixtures are made."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._began = time.monotonic()
        self._late = probes.cuda_is_started()
        self._client = ZygoteClient(self._run_child, list)
        self._client.ready()

    @property
    def age(self) -> float:
        """Seconds since the test began."""
        return time.monotonic() - self._began

    def search(self, number: int, kernel: str, hunt: Hunt) -> Found:
        """Search with the score of the test's ``number``-th call, for ``kernel``.

        Raises CiqError, also when CUDA had been started before the test.
        """
        if self._late:
            raise CiqError(
                "CUDA was started in this process before the test, so no fork of it can use a GPU",
                remedy="run without --ciq-isolate=off: each test then has a process of its own",
            )
        said: list[tuple[Any, ...]] = []
        request = (dict(os.environ), number, kernel, asdict(hunt))
        try:
            limit = min(hunt.seconds + _GRACE, _OF_TEST * child.seconds_left())
            ended = self._client.run(request, limit, said.append)
        except (LostError, NotStartedError) as error:
            raise CiqError(f"the process of the search: {error}") from error
        done = next((message[1:] for message in said if message[0] == Kind.DONE), None)
        if done is None:
            how = "did not end" if ended.timed_out else messages.describe(ended.code)
            raise CiqError(
                f"the process of the search {how}", looked_at=ended.stacks.splitlines()[-8:]
            )
        what, looked_at, remedy, found = done
        if found is None:
            raise CiqError(what, looked_at=looked_at, remedy=remedy)
        return Found(**found)

    def close(self) -> None:
        self._client.close()

    def _run_child(self, request: tuple[Any, ...], channel: socket.socket, stacks: int) -> int:
        environment, number, kernel, fields = request
        os.environ.clear()
        os.environ.update(environment)
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)
        _be_silent()

        def score(config: Any) -> Any:
            candidate = Candidate(number, kernel, config)
            self._item.stash[CANDIDATE] = candidate
            with contextlib.suppress(Answered):
                child.run_again(self._item)
            if not candidate.answers:
                raise CiqError(f"run again, the test did not come to its call {number} of ciq")
            return candidate.answers[0]

        try:
            answer: tuple[object, ...] = ("", (), "", asdict(Hunt(**fields).run(score)))
        except CiqError as error:
            answer = (error.what, error.looked_at, error.remedy, None)
        except Exception as error:
            answer = (f"the search failed with {one_line(error)}", (), "", None)
        messages.send(channel, Kind.DONE, *answer)
        return 0


def _be_silent() -> None:
    """What hundreds of runs of one test print is of no use in the report of that test."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (to the process's end)
