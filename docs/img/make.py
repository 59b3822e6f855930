"""The pictures of docs/img: pytest in a pseudo-terminal of a given width, and the plots.

``python docs/img/make.py [NAME ...]`` with pillow, pyte and matplotlib installed. No GPU is
needed: docs/img/demo simulates launches and runs the real statistics on them.
"""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEMO = HERE / "demo"

#: File name -> (columns, which tests of the demo, arguments of pytest).
SHOTS: dict[str, tuple[int, str, list[str]]] = {
    "terminal-80": (80, "few", ["--tb=short"]),
    "terminal-160": (160, "few", ["--tb=short", "-rN"]),
    "terminal-80-plain": (80, "few", ["--tb=short", "--color=no"]),
    "terminal-quiet": (80, "few", ["-q", "--tb=short"]),
    "terminal-verbose": (80, "few", ["-v", "--tb=no"]),
    "terminal-rA": (80, "one", ["-rA"]),
    "terminal-xdist": (80, "few", ["-n2", "--tb=no"]),
    "terminal-forty": (80, "forty", ["--tb=no"]),
    "terminal-forty-160": (160, "forty", ["--tb=no", "-rN"]),
}

_BACKGROUND, _FOREGROUND = "#1c1c1c", "#d0d0d0"
_COLOURS = {
    "red": "#ff5f5f",
    "green": "#5fd75f",
    "brown": "#ffd75f",  # pyte's name of ANSI yellow
    "blue": "#5fafff",
    "magenta": "#d787ff",
    "cyan": "#5fd7d7",
    "white": "#eeeeee",
    "black": "#808080",
}


def run(command: list[str], columns: int, env: dict[str, str]) -> bytes:
    """What a command writes to a terminal of that many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 1 << 16):
            written += block
    except OSError:  # Linux's end of file of a pseudo-terminal
        pass
    os.close(ours)
    process.wait()
    return written


def draw(written: bytes, columns: int, path: Path, *, size: int = 14) -> None:
    """Draw what a terminal would show of it, all lines that ever were, wrapped ones included."""
    screen = pyte.Screen(columns, written.count(b"\n") + len(written) // columns + 2)
    pyte.ByteStream(screen).feed(written)
    rows = [row for row, text in enumerate(screen.display) if text.strip()]
    name = font_manager.findfont("DejaVu Sans Mono")
    font = ImageFont.truetype(name, size)
    bold = ImageFont.truetype(name.replace("Mono.ttf", "Mono-Bold.ttf"), size)
    wide, high = round(font.getlength("M")), round(size * 1.3)
    image = Image.new("RGB", ((columns + 2) * wide, (rows[-1] + 2) * high), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    for row in range(rows[-1] + 1):
        for column in range(columns):
            cell = screen.buffer[row][column]
            colour = _COLOURS.get(cell.fg, _FOREGROUND)
            place = ((column + 1) * wide, row * high + high // 2)
            pen.text(place, cell.data, colour, bold if cell.bold else font)
    image.quantize(32).save(path, optimize=True)


def shoot(name: str) -> Path:
    columns, tests, arguments = SHOTS[name]
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    for variable in ("NO_COLOR", "COLUMNS", "CI", "GITHUB_STEP_SUMMARY"):
        env.pop(variable, None)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["--no-header", "-p", "no:cacheprovider", "-o", "addopts=", "-k", f"test_{tests}"]
    written = run([*command, *arguments, str(DEMO)], columns, env)
    path = HERE / f"{name}.png"
    draw(written, columns, path)
    return path


def plots() -> None:
    """What --ciq-plots and ``history --plot`` draw."""
    sys.path.insert(0, str(ROOT))
    from pytest_compileiq.report import history
    from pytest_compileiq.report import json as report
    from pytest_compileiq.report.album import Album
    from tests.report import simulated as sim

    kernel = (
        sim.canary("softmax"),
        sim.cv("softmax"),
        sim.win("softmax", speedup=1.06, disturbed=0.1),
    )
    undecided = sim.win("layer_norm", speedup=1.021, noise=0.05, disturbed=0.05)
    with tempfile.TemporaryDirectory() as folder:
        album = Album(Path(folder))
        records = [
            [sim.record(one, "t.py::a") for one in kernel],
            [sim.record(undecided, "t.py::b")],
        ]
        for own in records:
            for path in album.draw(own):
                shutil.copy(path, HERE / f"plot-{path.name}")
        many = [
            sim.record(
                sim.win(f"gemm_{n:02}", speedup=1 + n / 300, noise=0.004, seed=n), f"t.py::{n}"
            )
            for n in range(12)
        ]
        album.overview([*records[0], *records[1], *many])
        shutil.copy(Path(folder) / "overview.png", HERE / "plot-overview.png")
        for day in range(1, 15):
            runs = [
                sim.win("softmax", speedup=1.06, seed=day),
                sim.win(
                    "matmul", speedup=1.05 if day < 9 else 1.02 - day / 1000, noise=0.008, seed=day
                ),
            ]
            found = [sim.record(one, f"t.py::{one.kernel}") for one in runs]
            dated = {**report.environment(found), "date": f"2026-11-{day:02}T08:00:00+00:00"}
            (Path(folder) / f"{day}.json").write_text(report.as_text(found, [], dated))
        history.main([folder, "--plot", str(HERE / "plot-history.png")])


if __name__ == "__main__":
    for wanted in sys.argv[1:] or SHOTS:
        print(shoot(wanted))
    if not sys.argv[1:]:
        plots()
