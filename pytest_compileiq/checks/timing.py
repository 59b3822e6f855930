"""The GPU tier of the checks: builds that run right are timed, and what was found is told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from pytest_compileiq.checks import correctness
from pytest_compileiq.gpu.clocks import ClockState
from pytest_compileiq.gpu.identity import Gpu
from pytest_compileiq.gpu.session import Held
from pytest_compileiq.isolation import child
from pytest_compileiq.isolation.messages import AGAINST
from pytest_compileiq.measure import decide, spread, units
from pytest_compileiq.measure.blocks import Pilot
from pytest_compileiq.measure.decide import End, Outcome, Rule
from pytest_compileiq.measure.samples import record_units
from pytest_compileiq.measure.spread import SpreadTest
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Budget, Comparison, Side
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Launch, Workbench
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

Hold = Callable[[], AbstractContextManager[Held]]
#: A site's own way to time one block: (kernel, arm, launch) -> seconds a launch.
SiteBlock = Callable[[str, str, Launch], float]


class Claim(NamedTuple):
    """What is to be shown of an arm against the baseline."""

    arm: Arm
    rule: Rule


@dataclass(frozen=True, slots=True)
class Measured:
    """A comparison with its outcome. ``seconds`` of wall time, without the warm-up."""

    comparison: Comparison
    pilot: Pilot
    seconds: float
    gpu: Gpu
    clocks: ClockState

    @property
    def outcome(self) -> Outcome:
        assert self.comparison.outcome is not None
        return self.comparison.outcome

    @property
    def blocks(self) -> int:
        """Timed blocks, the pilot's and those of rejected units included."""
        return len(self.pilot.seconds) + sum(len(u.timed.seconds) for u in self.comparison.units)

    def numbers(self) -> dict[str, object]:
        comparison = self.comparison
        rejected = [unit.rejected for unit in comparison.units if unit.rejected is not None]
        return {
            "timed": True,
            **self.outcome.numbers(),
            "blocks": self.blocks,
            "launches": self.blocks * self.pilot.form.launches,
            "seconds": self.seconds,
            "seed": comparison.seed,
            "rejected_units": len(rejected),
            "rejected_for": sorted(set(rejected)),
            "clocks_move": comparison.clocks_move,
            "power_coupled": comparison.power_coupled,
            "gpu": self.gpu.name,
            "driver": self.gpu.driver,
            "sm_mhz": self.clocks.sm_mhz if self.clocks.locked else None,
            **self.pilot.numbers(),
        }

    def __str__(self) -> str:
        low, high = self.outcome.interval
        ratio = "?" if self.outcome.speedup is None else f"{self.outcome.speedup:.4g}x"
        between = f"[{_end(low)}, {_end(high)}]"
        what = "launches" if self.pilot.form.launches == 1 else "blocks"
        seat = "" if self.pilot.seats else ", one placement only"
        return f"{ratio} {between} in {self.blocks} {what}, {self.seconds:.2g} s{seat}"

    def why_undecided(self) -> tuple[str, str]:
        """What is missing for an answer, and what to do; for an outcome that is undecided."""
        end, more = self.outcome.end, self.outcome.more_units
        if end is End.THROTTLED:
            causes = ", ".join(sorted({u.rejected for u in self.comparison.units if u.rejected}))
            return f"too many units were disturbed ({causes})", "lower --ciq-sm-mhz, or wait"
        if end is End.BROKEN:
            return "too many units had no usable time", "look at what launch() does on the host"
        if end is End.AT_THRESHOLD:
            return "it lies at the threshold", "move the threshold, or look for a clearer case"
        text = "the budget is spent"
        if more is not None:
            return f"{text}, about {4 * more} more blocks are needed", "raise --ciq-budget"
        return text, "raise --ciq-budget, or lock the clocks"


def _end(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


class Stopwatch:
    """Times the builds of one test. The GPU is held from the first measurement to ``close``.

    ``budget_seconds`` is for each comparison, ``tests`` the number of ciq tests in this run,
    among which the chance of a wrong failure is shared. ``cold``: the L2 cache is flushed before
    every launch. ``time_block`` is a site's own way.
    """

    def __init__(
        self,
        hold: Hold,
        *,
        budget_seconds: float,
        cold: bool = True,
        tests: int = 1,
        time_block: SiteBlock | None = None,
    ) -> None:
        self._acquire = hold
        self._held: Held | None = None
        self._budget = Budget(gpu_seconds=budget_seconds)
        self._cold = cold
        self._tests = tests
        self._site = time_block
        self._names: dict[str, tuple[str, str]] = {}
        self._stack = ExitStack()
        self._timer: Timer | None = None

    @staticmethod
    def new_seed() -> int:
        """A seed for coins that nobody can foresee; the record of what it gave holds it."""
        return random.SystemRandom().getrandbits(32)

    def close(self) -> None:
        """Give the GPU back."""
        self._timer = self._held = None
        self._stack.close()

    def shared(self, rule: Rule) -> Rule:
        """``rule`` with its share of the chance of a wrong failure."""
        return rule.among(self._tests)

    def obstacle(self, bench: Workbench, arms: Sequence[Arm] = ()) -> str | None:
        """Why these builds cannot be timed, or None."""
        for arm, build in zip((BASELINE, *arms), bench.build([BASELINE, *arms]), strict=True):
            if isinstance(build, Build) and build.launch is None:
                return f"the build of {arm.name} gives no launch"
        return None

    def compare(self, bench: Workbench, claims: Sequence[Claim]) -> list[Measured]:
        """Time each claim's arm against the baseline, in turns, until all are decided.

        Raises CiqError for wrong results, before or after, and GpuError.
        """
        timer, held = self._begin(), self.hold()
        arms = [BASELINE, *(claim.arm for claim in claims)]
        _require_right(bench, arms)
        child.progress(AGAINST.join(arm.name for arm in arms), kernel=bench.kernel.name)
        builds = dict(zip(arms, bench.build(arms), strict=True))
        seed = self.new_seed()
        started: list[tuple[Comparison, Pilot, float]] = []
        names: list[str] = []
        for arm, rule in claims:
            names.append(name := self._name(bench, arm, beside=names))
            began = time.perf_counter()
            pilot = timer.add(name, _pair(bench, builds, arm))
            seconds = time.perf_counter() - began - pilot.warm_up_seconds
            comparison = Comparison(
                name,
                self.shared(rule),
                pilot.seconds,
                seed,
                block_seconds=pilot.block_seconds,
            )
            started.append((comparison, pilot, seconds))
        units.run([one for one, _, _ in started], timer, budget=self._budget)
        _require_right(bench, arms, when="after timing")
        return [
            Measured(
                one,
                pilot,
                seconds + sum(unit.timed.gpu_seconds for unit in one.units),
                held.gpu,
                held.clocks,
            )
            for one, pilot, seconds in started
        ]

    def spread(self, bench: Workbench, arm: Arm, limit: float) -> tuple[SpreadTest, Pilot]:
        """Time an arm's single launches until it is decided whether their CV is below ``limit``.

        A site that times in its own way gives times of its blocks instead.
        """
        timer = self._begin()
        _require_right(bench, [arm])
        child.progress(arm.name, kernel=bench.kernel.name)
        (build,) = bench.build([arm])
        assert isinstance(build, Build)
        name = self._name(bench, arm)
        pilot = timer.add(name, Pair(bench.kernel, dict.fromkeys(Side, build)))
        alpha_fail = decide.ALPHA_FAIL / self._tests
        test = SpreadTest(limit, alpha_fail=alpha_fail, events=self._site is None)
        began = time.perf_counter()
        for seconds in timer.series(name):
            decided = test.update(seconds)
            spent = time.perf_counter() - began > self._budget.gpu_seconds
            if decided or len(test.seconds) >= spread.LAUNCHES or spent:
                break
        test.end()
        _require_right(bench, [arm], when="after timing")
        return test, pilot

    def hold(self) -> Held:
        """Hold the GPU from now on, for what times itself."""
        if self._held is None:
            self._held = self._stack.enter_context(self._acquire())
        return self._held

    def _begin(self) -> Timer:
        if self._timer is None:
            held = self.hold()
            if self._site is None:
                from pytest_compileiq.measure.cuda import CudaDriver

                driver = CudaDriver()
            else:
                driver = None
            self._timer = Timer(
                driver,
                seed=self.new_seed(),
                cold=self._cold,
                reasons=held.monitor.reasons,
                time_block=None if self._site is None else self._time_block,
            )
        return self._timer

    def _name(self, bench: Workbench, arm: Arm, *, beside: Sequence[str] = ()) -> str:
        """What the timer calls a pair; ACFs of one file name are told apart by a number."""
        name = plain = f"{bench.kernel.name}/{arm.name}"
        while name in beside:
            name = f"{plain} ({beside.index(name) + 2})"
        self._names[name] = bench.kernel.name, arm.name
        return name

    def _time_block(self, name: str, side: Side, launch: Launch) -> float:
        assert self._site is not None
        kernel, arm = self._names[name]
        return self._site(kernel, BASELINE.name if side is Side.BASE else arm, launch)


def _pair(bench: Workbench, builds: Mapping[Arm, Build | Exception], arm: Arm) -> Pair:
    base, candidate = builds[BASELINE], builds[arm]
    assert isinstance(base, Build)
    assert isinstance(candidate, Build)
    return Pair(bench.kernel, {Side.BASE: base, Side.CANDIDATE: candidate})


def _require_right(bench: Workbench, arms: Sequence[Arm], *, when: str = "before timing") -> None:
    for arm in arms:
        fault = correctness.fault_of(bench, arm, when=when)
        if fault is not None:
            raise fault


def verdict(
    check: Check,
    kernel: str,
    measured: Sequence[Measured],
    message: str,
    remedy: str,
    numbers: Mapping[str, object],
) -> Verdict:
    """A verdict with the status of the worst of ``measured`` and all samples to replay it."""
    order = (Status.FAIL, Status.UNDECIDED, Status.PASS)
    worst = min((one.outcome for one in measured), key=lambda o: order.index(o.status))
    return Verdict(
        check=check,
        kernel=kernel,
        status=worst.status,
        reason=worst.reason,
        message=message,
        remedy="" if worst.status is Status.PASS else remedy,
        numbers=dict(numbers),
        samples=[record_units(one.comparison) for one in measured],
    )


def unfit(check: Check, kernel: str, why: str, numbers: Mapping[str, object]) -> Verdict:
    """The GPU was asked for, and this cannot be timed on it."""
    return Verdict(
        check=check,
        kernel=kernel,
        status=Status.UNDECIDED,
        reason=Reason.UNFIT,
        message=f"not timed: {why}",
        remedy="give the kernel what it needs to run: PtxKernel(..., grid=, block=, args=), or "
        "Build(launch=...)",
        numbers=dict(numbers),
    )
