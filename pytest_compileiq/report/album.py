"""``--ciq-plots``: the pictures of one run, as files and in pytest-html's report."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_compileiq.report import plots
from pytest_compileiq.report.figures import Record

_OVERVIEW = "overview.png"


class Album:
    """The pictures of one run in one folder, made when it does not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawn: dict[str, tuple[str, str]] = {}  # file name -> node id and kernel

    @property
    def told(self) -> str:
        if not self.drawn:
            return "nothing was timed, so nothing is drawn"
        return f"{len(self.drawn)} kernels and overview.png in {self.folder}"

    def draw(self, records: Sequence[Record]) -> list[Path]:
        """A picture for each kernel of a test that was timed. Raises OSError."""
        paths = []
        for kernel in dict.fromkeys(str(record["kernel"]) for record in records):
            own = [record for record in records if record["kernel"] == kernel and record["samples"]]
            if own:
                path = self.folder / self._name(kernel, own[0]["nodeid"])
                plots.save(plots.picture(kernel, own), path)
                paths.append(path)
        return paths

    def _name(self, kernel: str, nodeid: str) -> str:
        """A file name from the kernel's, with a hash where several would have the same."""
        plain = re.sub(r"[^\w.=+-]+", "_", kernel).strip("._") or "kernel"
        name = f"{plain[:60]}.png"  # of four bytes a letter at most, and 255 are allowed
        taken = name == _OVERVIEW or self.drawn.get(name, (nodeid, kernel)) != (nodeid, kernel)
        if len(plain) > 60 or taken:
            mark = hashlib.sha256(ascii((nodeid, kernel)).encode()).hexdigest()[:8]
            name = f"{plain[:60]}-{mark}.png"
        self.drawn[name] = (nodeid, kernel)
        return name

    def attach(self, report: Any, pictures: Sequence[Path]) -> None:
        """Hand pictures to pytest-html."""
        from pytest_html import extras

        report.extras = [
            *getattr(report, "extras", []),
            *(
                extras.png(base64.b64encode(path.read_bytes()).decode("ascii"), path.stem)
                for path in pictures
            ),
        ]

    def overview(self, records: Sequence[Record]) -> Path | None:
        """The speed-ups of all kernels, beside their pictures. None where there are none."""
        figure = plots.overview(records) if self.drawn else None
        if figure is None:
            return None
        path = self.folder / _OVERVIEW
        plots.save(figure, path)
        return path
