"""docs/reasons.md: every reason word has a failing test whose message says what to do."""

from __future__ import annotations

import pytest

from docs import make_reasons
from docs.make_reasons import CASES, Case
from pytest_compileiq.toolchain.ptxas import Ptxas
from pytest_compileiq.verdict import Reason

STORED = make_reasons.stored()


def test_every_word_has_its_section_and_the_file_is_current() -> None:
    assert [case.word for case in CASES] == list(Reason)
    assert make_reasons.PAGE.read_text(encoding="utf-8") == make_reasons.page(STORED)


@pytest.mark.parametrize("case", [case for case in CASES if not case.gpu], ids=lambda c: c.word)
def test_the_message_is_the_one_in_the_docs(
    case: Case, ptxas: Ptxas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CIQ_PTXAS", str(ptxas.path))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert make_reasons.text_of(case) == (case.word, STORED[case.word])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.word)
def test_the_message_says_what_to_do_in_eight_lines(case: Case) -> None:
    if case.gpu and STORED[case.word] == make_reasons.NOT_RUN:
        pytest.skip("docs/make_reasons.py has not been run with --ciq-gpu yet")
    assert says_what_to_do(STORED[case.word])


def says_what_to_do(text: str) -> bool:
    *_, last = lines = text.splitlines()
    return last.startswith("  to do: ") and len(lines) <= 8


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in CASES if case.gpu], ids=lambda c: c.word)
def test_words_that_need_a_gpu(case: Case, request: pytest.FixtureRequest) -> None:
    gpu = request.config.getoption("ciq_gpu") or pytest.skip("needs --ciq-gpu")
    reason, text = make_reasons.text_of(case, gpu)
    assert reason == case.word
    assert says_what_to_do(text)
