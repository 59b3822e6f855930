"""The tests of docs/reasons.md that need a GPU, whole, on stand-ins for NVML, CUDA and torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import make_reasons
from docs.make_reasons import CASES, Case
from pytest_compileiq.toolchain.ptxas import Ptxas
from tests.fake_nvml.machine import SET, Machine
from tests.test_reasons import says_what_to_do


@pytest.mark.parametrize("case", [case for case in CASES if case.gpu], ids=lambda c: c.word)
def test_the_word_comes_and_no_clock_is_locked(
    case: Case, machine: Machine, ptxas: Ptxas, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(make_reasons.ROOT))
    monkeypatch.setenv("PYTEST_CIQ_PTXAS", str(ptxas.path))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p tests.gpu.fake_session --ciq-lease-dir={tmp_path}")
    reason, text = make_reasons.text_of(case, "0")
    assert reason == case.word, text
    assert says_what_to_do(text)
    assert case.word in text
    assert not machine.log(SET)
