"""However pytest ends, the clocks come back, or a journal stays that the next run acts upon.

Each ending is brought about on real pytest processes, once on a machine where locking is allowed,
and once where it is not and somebody else's lock has to survive.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.machine import RESET, SET, Machine
from tests.gpu.conftest import NewMachine
from tests.gpu.sessions import Session, gone, guardian_of, until

SOURCE = """
@pytest.fixture
def broken(ciq_gpu):
    raise RuntimeError("set-up fails")

def test_pass(ciq_gpu): said("inside")
def test_fail(ciq_gpu): assert said("inside")
def test_setup(ciq_gpu, broken): pass
def test_wait(ciq_gpu): said("inside"); wait()
def test_exit(ciq_gpu): said("inside"); os._exit(3)

@pytest.mark.timeout(1, method="thread")
def test_timeout(ciq_gpu): said("inside"); time.sleep(60)
"""
FOREIGN = 1200  # MHz: what somebody else has locked where we may not

Ending = Callable[[Session], None]


def finish(session: Session) -> None:
    session.wait()


def interrupt_test(session: Session) -> None:
    session.pid_of("inside")
    session.interrupt()
    assert session.wait() == 2


def interrupt_setup(session: Session) -> None:
    until(lambda: any(call.ret == -1 for call in session.machine.log(SET)), "Set is on its way")
    session.interrupt()
    assert session.wait() == 2


def send(number: int) -> Ending:
    def end(session: Session) -> None:
        session.pid_of("inside")
        session.process.send_signal(number)
        assert session.wait() == -number

    return end


def kill_worker(session: Session) -> None:
    os.kill(session.pid_of("inside"), signal.SIGKILL)
    session.go()  # its replacement must not wait
    session.wait()


def kill_controller(session: Session) -> None:
    worker = session.pid_of("inside")
    session.kill()
    session.go()
    until(lambda: gone(worker), "the worker ends by itself")


def kill_guardian(session: Session) -> None:
    session.pid_of("inside")
    os.kill(guardian_of(session.machine), signal.SIGKILL)
    session.go()
    session.wait()


def kill_both(session: Session) -> None:
    session.pid_of("inside")
    guardian = guardian_of(session.machine)
    os.kill(guardian, signal.SIGSTOP)  # so that it cannot act between the two kills
    session.kill()
    os.kill(guardian, signal.SIGKILL)
    until(lambda: gone(guardian), "the guardian is dead")


ENDINGS: dict[str, tuple[str, Ending, tuple[str, ...]]] = {
    "pass": ("test_pass", finish, ()),
    "fail": ("test_fail", finish, ()),
    "error-in-setup": ("test_setup", finish, ()),
    "sigint-in-test": ("test_wait", interrupt_test, ()),
    "sigint-in-setup": ("test_wait", interrupt_setup, ()),
    "sigterm": ("test_wait", send(signal.SIGTERM), ()),
    "sigkill": ("test_wait", send(signal.SIGKILL), ()),
    "os-exit": ("test_exit", finish, ()),
    "timeout-thread": ("test_timeout", finish, ()),
    "worker-sigkill": ("test_wait", kill_worker, ("-n1", "--max-worker-restart=1")),
    "controller-sigkill": ("test_wait", kill_controller, ("-n1",)),
    "guardian-sigkill": ("test_wait", kill_guardian, ()),
    "both-sigkill": ("test_wait", kill_both, ()),
}


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def new(machine: Machine, test: str, *args: str, source: str = SOURCE) -> Session:
        where = tmp_path / f"run{len(sessions)}"
        session = Session(machine, folder, where, source, "-k", f"{test}", *args)
        sessions.append(session)
        return session

    yield new
    for session in sessions:
        session.kill()


def journals(folder: Path) -> list[Path]:
    return list(folder.glob("*.json"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("admin", [True, False], ids=["may-lock", "may-not"])
def test_ending(
    ending: str,
    admin: bool,
    new_machine: NewMachine,
    folder: Path,
    start: Callable[..., Session],
) -> None:
    if ending == "timeout-thread":
        pytest.importorskip("pytest_timeout")
    machine = new_machine(admin=admin)
    if not admin:
        machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = FOREIGN
    if ending == "sigint-in-setup":
        machine.rule(SET, delay_ms=600, times=1)
    test, end, args = ENDINGS[ending]
    session = start(machine, test, *args)
    end(session)

    assert machine.log(SET), session.text()
    if not admin:
        # (ii) nothing was changed, (v) and the other's lock is still there, with no reset tried.
        assert all(call.ret for call in machine.changes())
        assert not machine.log(RESET)
        assert machine.locks(0) == (FOREIGN, FOREIGN, 0, 0)
        assert not journals(folder)
    elif ending == "both-sigkill":
        # (i) the other way: nobody could reset, so the journal stays, and the next run acts.
        assert machine.locks(0) == (1095, 1095, 0, 0)
        assert len(journals(folder)) == 1
        next_run = start(machine, "test_pass")
        assert next_run.wait() == 0, next_run.text()
        assert "killed run left locked were reset first" in next_run.text()
        changes = [call.fn for call in machine.changes()]
        assert changes == [SET, RESET, SET, RESET]
    if admin:
        # (i) within a second, as NVML's own log tells it by its clock.
        until(lambda: machine.free, "the clocks are reset", 1.0)
        until(lambda: not journals(folder), "the journal is gone", 1.0)
    # (iii) and (iv): a reset between two sets of different processes, no GPU but the one asked for.
    machine.verify()


@pytest.mark.parametrize("isolate", ["auto", "off"])
def test_ctrl_c_while_the_clocks_are_being_reset(
    machine: Machine, folder: Path, start: Callable[..., Session], isolate: str
) -> None:
    """A second one ends pytest at once, before it gives up by itself: it says no word of a hang."""
    machine.rule(RESET, delay_ms=8000, times=1)
    session = start(machine, "test_wait", f"--ciq-isolate={isolate}")
    session.pid_of("inside")
    session.interrupt()
    until(lambda: machine.log(RESET), "the reset is on its way")
    session.interrupt()
    session.wait()
    assert not machine.free
    text = session.text()
    assert "KeyboardInterrupt" in text
    assert "has not answered" not in text, text
    until(lambda: machine.free, "the clocks are reset", 12)
    until(lambda: not journals(folder), "the journal is gone", 1)
    assert [call.ret for call in machine.log(RESET)] == [-1, 0]


@pytest.mark.parametrize("isolate", ["auto", "off"])
def test_ctrl_c_and_a_reset_that_hangs(
    machine: Machine, folder: Path, start: Callable[..., Session], isolate: str
) -> None:
    """Who waits is told what is wrong, and that is no internal error."""
    machine.rule(RESET, delay_ms=8000, times=1)
    session = start(machine, "test_wait", f"--ciq-isolate={isolate}")
    session.pid_of("inside")
    session.interrupt()
    assert session.wait() in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    text = session.text()
    assert "NVML has not answered for 5 s" in text
    assert "INTERNALERROR" not in text, text
    assert journals(folder), "nothing tells the next run of the lock"


def test_killed_holder_frees_its_gpu_within_a_second(
    machine: Machine, folder: Path, start: Callable[..., Session]
) -> None:
    first = start(machine, "test_wait")
    first.pid_of("inside")
    second = start(machine, "test_pass")
    time.sleep(1.0)
    first.kill()
    killed = time.monotonic_ns()
    second.pid_of("inside")
    reset, taken = machine.log(RESET)[0], machine.log(SET)[1]
    assert (reset.ns - killed) / 1e9 < 1.0
    assert reset.ns < taken.ns
    # The wait for the lease ends at once; a guardian's start comes on top of it.
    assert (taken.ns - reset.ns) / 1e9 < 2.0
    assert second.wait() == 0


MANY = """
@pytest.mark.parametrize("n", range(200))
def test_many(ciq_gpu, n): said("inside"); time.sleep(0.01)
"""


def kill_at_random(
    repetitions: int, machine: Machine, folder: Path, start: Callable[..., Session]
) -> dict[str, int]:
    """Kill -9 pytest, and each third time its guardian too; what was left within a second."""
    rng = random.Random(20261130)
    left = {"free": 0, "journal": 0}
    for number in range(repetitions):
        session = start(machine, "test_many", source=MANY)
        before = len(machine.log(SET))
        # From "no guardian yet" to several tests on: the moments that differ lie close together.
        until(lambda: len(machine.log("nvmlInitWithFlags")) > 0, "NVML is used")
        until(lambda b=before: len(machine.log(SET)) > b, "a lock")  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 0.3))
        guardian = guardian_of(machine)
        if number % 3 == 2:
            try:
                os.kill(guardian, signal.SIGSTOP)
                session.kill()
                os.kill(guardian, signal.SIGKILL)
            except ProcessLookupError:
                session.kill()
        else:
            session.kill()
        until(lambda: machine.free or journals(folder), "free, or a journal", 1.0)
        left["free" if machine.free else "journal"] += 1
        machine.start_new_log()
    return left


@pytest.mark.parametrize("repetitions", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(
    repetitions: int,
    machine: Machine,
    folder: Path,
    start: Callable[..., Session],
    record_property: Callable[[str, object], None],
) -> None:
    left = kill_at_random(repetitions, machine, folder, start)
    record_property("left", left)
    last = start(machine, "test_pass")
    assert last.wait() == 0
    assert machine.free
    assert not journals(folder)
    print(f"kill -9 at random: {left}")
