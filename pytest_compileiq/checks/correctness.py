"""Is the result of a launch right? Asked of both arms, before and after they are timed.

A time of a kernel that computes something else is no time of this kernel, and an ACF that
breaks a kernel now and then is caught by asking twice.
"""

from __future__ import annotations

import pytest

from pytest_compileiq.checks.proof import in_one_line
from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream
from pytest_compileiq.isolation import child
from pytest_compileiq.subjects.kernel import Arm, Launch, Workbench
from pytest_compileiq.verdict import Reason


def fault_of(
    bench: Workbench, arm: Arm, *, when: str = "before timing", launch: Launch | None = None
) -> CiqError | None:
    """Launch an arm once into outputs full of NaN and ask the kernel's ``check``.

    The outputs are poisoned because they are shared by the arms: one that writes nothing would
    pass with what the other one left. ``launch`` stands for that of the arm's build. None means
    that the result is right, or that the kernel has no check.

    A wrong baseline is the fault of the kernel or of its check (``unfit``), as no ACF is in it; any
    other arm is ``wrong-result``, or ``crashed`` when the launch itself fails. Raises what
    the build raised when the arm does not build, and CiqError when there is nothing to launch.
    """
    kernel = bench.kernel
    if kernel.check is None:
        return None
    child.progress(arm.name, kernel=kernel.name)
    (build,) = bench.build([arm])
    if isinstance(build, Exception):
        raise build
    run = launch or build.launch
    if run is None:
        raise CiqError(
            f"{kernel.name}: its build gives no launch, so its results cannot be checked",
            remedy="let build(acf) return Build(..., launch=...), or leave check= out",
        )
    plain = arm.acf is None and not arm.flags
    try:
        for buffer in kernel.outputs:
            stream.fill(buffer)
        run()
        stream.synchronize()
    except CiqError:
        raise
    except Exception as error:
        return CiqError(
            f"{arm.name}: the launch failed {when}: {in_one_line(error)}",
            remedy="no ACF is applied here: mend the kernel or its launch"
            if plain
            else "drop this ACF",
            reason=Reason.CRASHED,
        )
    try:
        answer = kernel.check()
        if _is_no(answer):
            raise AssertionError(f"check() returned {answer!r}")
    except (Exception, pytest.fail.Exception) as error:
        return _wrong(arm, when, in_one_line(error), plain=plain)
    return None


def _is_no(answer: object) -> bool:
    """Is it what ``allclose`` and ``==`` say of a difference? Whoever returns it means to fail."""
    if "bool" in str(getattr(answer, "dtype", "")):  # of numpy or torch, one or many
        return not answer.all()  # type: ignore[attr-defined]
    return answer is False


def _wrong(arm: Arm, when: str, said: str, *, plain: bool) -> CiqError:
    if plain:
        return CiqError(
            f"{arm.name}: the result is wrong {when}, without any ACF: {said}",
            remedy="mend the kernel, its launch or check=: this is not the ACF's doing",
            reason=Reason.UNFIT,
        )
    return CiqError(
        f"{arm.name}: the result is wrong {when}: {said}",
        remedy="drop this ACF; if the difference is rounding, widen the tolerance of check=",
        reason=Reason.WRONG_RESULT,
    )
