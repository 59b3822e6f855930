"""What is seen of an objective before a search."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_compileiq.search import sanity, spaces
from pytest_compileiq.search.causes import Answer, Cause


def scripted(*answers: Answer) -> sanity.Evaluate:
    left: Iterator[Answer] = iter(answers)
    return lambda params: next(left)


GOOD = Answer(scores=(100.0,))


def test_noise_is_the_relative_deviation_of_three_calls() -> None:
    evaluate = scripted(GOOD, Answer(scores=(102.0,)), Answer(scores=(98.0,)))
    sane = sanity.check(evaluate, {"x": 1}, baseline=False)
    assert sane.noise == pytest.approx(2 / 102)
    assert sane.notes == (
        "3 calls on the first sample differ: their relative standard deviation is 0.02",
    )


def test_an_objective_that_fails_only_at_times_is_named() -> None:
    evaluate = scripted(GOOD, GOOD, Answer(cause=Cause.HUNG, text="did not return within 1 s"))
    sane = sanity.check(evaluate, {"x": 1}, baseline=False)
    assert sane.noise is None
    assert "when called again it did not return within 1 s (hung)" in sane.notes[0]


def test_a_baseline_that_has_no_score_is_a_note_where_it_is_not_needed() -> None:
    evaluate = scripted(GOOD, GOOD, GOOD, Answer(cause=Cause.RAISED, text="raised KeyError: 'x'"))
    sane = sanity.check(evaluate, "ab", baseline=True)
    (note,) = sane.notes
    assert note.startswith("on the baseline {} the objective raised KeyError: 'x' (raised): no ")


def test_autotuned_kernels_are_found_where_the_objective_names_them() -> None:
    triton = pytest.importorskip("triton")

    def kernel(p: Any) -> None: ...

    def tuned(count: int) -> Any:
        configs = [triton.Config({}, num_warps=2**n) for n in range(count)]
        return triton.autotune(configs, key=[])(triton.jit(kernel))

    many, one = tuned(2), tuned(1)

    def objective(config: Any, other: Any = one) -> Any:
        return many[(1,)](other)

    assert sanity.autotuned(objective) == ["many"]
    assert sanity.autotuned(functools.partial(objective, other=one)) == ["many"]
    assert sanity.autotuned(lambda config: one) == []
    assert sanity.autotuned(print) == []


def test_a_space_that_comes_over_the_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    monkeypatch.delenv("CIQ_SEARCH_SPACES_DIR", raising=False)
    assert "has the tag 'latest'" in spaces.notes_on(PtxasSearchSpace())[0]
    assert spaces.notes_on(PtxasSearchSpace(tag="2026.1")) == []
    assert spaces.notes_on({"x": 1}) == []
    monkeypatch.setenv("CIQ_SEARCH_SPACES_DIR", "/somewhere")
    assert spaces.notes_on(PtxasSearchSpace()) == []
