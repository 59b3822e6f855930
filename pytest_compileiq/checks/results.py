"""Are a build's results right? Asked before its time means anything, and after."""

from __future__ import annotations

from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream
from pytest_compileiq.isolation import child
from pytest_compileiq.subjects.kernel import Arm, Build, Workbench
from pytest_compileiq.verdict import Reason


def fault_of(bench: Workbench, arm: Arm) -> CiqError | None:
    """Launch an arm once on outputs full of NaN and let the kernel's ``check`` look at them.

    None if the results are right, if there is no ``check``, or if the arm cannot be launched.
    """
    kernel = bench.kernel
    (build,) = bench.build([arm])
    if not isinstance(build, Build) or build.launch is None:
        return None
    child.progress(arm.name, kernel=kernel.name)
    for output in kernel.outputs:
        stream.fill(output)
    build.launch()
    stream.synchronize()
    if kernel.check is None:
        return None
    try:
        kernel.check()
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        return CiqError(
            f"{arm.name}: the results of {kernel.name} are wrong: {text}",
            remedy="drop this ACF: it breaks the kernel"
            if arm.acf is not None
            else "mend the kernel, or its check: no ACF is involved",
            reason=Reason.WRONG_RESULT,
        )
    return None
