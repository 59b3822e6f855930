"""TritonKernel: what it compiles, proofs on what it built, and its launches on a driver of ours."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("triton", reason="tox -e triton brings it")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pytest_compileiq import TritonKernel
from pytest_compileiq.checks import proof
from pytest_compileiq.errors import AcfError, CiqError, SettingsError, ToolchainError
from pytest_compileiq.gpu import stream
from pytest_compileiq.subjects import placing
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason
from tests.conftest import EXAMPLE
from tests.gpu import fake_core
from tests.triton import kernels
from tests.triton.support import waves


@pytest.fixture
def bench(assembler: Assembler) -> Workbench:
    return Workbench(waves(), assembler, EXAMPLE)


def answer(kernel: TritonKernel, assembler: Assembler, arm: Arm = BASELINE) -> Build:
    (made,) = kernel.build_all([arm], assembler, Path())
    if isinstance(made, Exception):
        raise made
    return made


# Proofs


def test_arrival_effect_and_resources(bench: Workbench, best: Acf) -> None:
    shown = proof.proven(bench, Arm("best.acf", best))
    assert shown.same_code is False
    used = bench.kernel.resources_of(shown.build)
    assert used is not None
    assert used.registers > 8
    assert bench.kernel.entry == "waves"
    assert proof.ptxas_of(bench, shown.build) == str(bench.assembler.ptxas())


def test_a_sample_of_the_search_space_arrives(bench: Workbench, tmp_path: Path) -> None:
    if not os.environ.get("CIQ_SEARCH_SPACES_DIR"):
        pytest.skip("needs a mirror of the search spaces in CIQ_SEARCH_SPACES_DIR")
    from compileiq.ciq import Search
    from compileiq.search_spaces.compilers import PtxasSearchSpace
    from compileiq.types import WorkerTypes

    search = Search(
        objective_function=len,
        search_space=PtxasSearchSpace(version="13.3"),
        search_config={"problem_type": "min", "generations": 1, "pool_size": 6},
        worker_type=WorkerTypes.MANUAL,
        cache_folder=tmp_path,
    )
    sample = Acf(Path("sample.acf"), bytes.fromhex(str(search.sample(1)[0])))
    assert proof.proven(bench, Arm("sample.acf", sample)).same_code is False


def test_a_damaged_acf_is_refused_by_ptxas_and_not_by_triton(
    bench: Workbench, best: Acf, capfd: pytest.CaptureFixture[str]
) -> None:
    assert proof.refused(bench, best) == "damaged-best.acf"
    with pytest.raises(AcfError, match=r"ptxas 13\.3\.73 refuses damaged-best\.acf"):
        proof.built_with(bench, Arm("damaged-best.acf", best.damaged()))
    assert ".visible .entry" not in "".join(capfd.readouterr())  # Triton prints the whole PTX


def test_raw_flags(bench: Workbench) -> None:
    o0, o3 = Arm("raw -O0", flags=("-O0",)), Arm("raw -O3", flags=("-O3",))
    sizes = [made.code.code_size() for made in bench.build([BASELINE, o0, o3])]  # type: ignore[union-attr]
    assert sizes[1] > 1.5 * sizes[0]
    assert sizes[2] == sizes[0]


def test_the_hash_is_that_of_the_ptx_and_of_no_arm(assembler: Assembler, best: Acf) -> None:
    one, two, other = waves(), waves(), waves(constexprs={"BLOCK": 512})
    answer(one, assembler, Arm("best.acf", best))
    assert one.ptx_sha256(Path()) == two.ptx_sha256(Path()) != other.ptx_sha256(Path())


def test_line_information_is_not_in_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = set()
    for off in ("0", "1"):
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", off)
        kernel = waves()
        hashes.add(kernel.ptx_sha256(Path()))
        assert (".section" in str(kernel._ptx)) is (off == "0")
    assert len(hashes) == 1


def test_another_ptxas_is_named(
    assembler: Assembler, best: Acf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own is of 12.8: it takes no ACF, and its code is not what the ACF was made for."""
    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    monkeypatch.setitem(vars(knobs.nvidia), "ptxas", str(bundled / "ptxas"))
    monkeypatch.setitem(vars(knobs.nvidia), "ptxas_blackwell", str(bundled / "ptxas"))
    for arm in (BASELINE, Arm("best.acf", best)):
        with pytest.raises(ToolchainError, match="another ptxas than it was told to") as error:
            answer(waves(), assembler, arm)
        assert error.value.reason is Reason.UNFIT


def test_no_cache_of_the_user_is_written(
    assembler: Assembler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "theirs"))
    answer(waves(), assembler)
    assert not (tmp_path / "theirs").exists()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "theirs")
    assert "TRITON_DUMP_PTXAS_LOG" not in os.environ


# What is compiled


def test_numbers_are_specialised_as_at_a_launch(assembler: Assembler) -> None:
    """n = 1 is a constant and no parameter; 4096 is known to be a multiple of 16, 4095 is not."""
    hashes = {}
    for n in (1, 4095, 4096, 8192):
        kernel = waves(args=("*fp32", n))
        hashes[n] = kernel.ptx_sha256(Path())
    assert len(set(hashes.values())) == 3
    assert hashes[4096] == hashes[8192]


def test_a_configuration_is_chosen_for_an_autotuned_function(assembler: Assembler) -> None:
    common: dict[str, Any] = {"grid": (4,), "args": ("*fp32", 512), "arch": "sm_90a"}
    with pytest.raises(SettingsError, match="halves is autotuned over 2 configurations") as error:
        answer(TritonKernel(kernels.tuned, **common), assembler)
    assert "HALF: 64" in error.value.looked_at[0]
    chosen = TritonKernel(kernels.tuned, config=kernels.CONFIGS[1], **common)
    by_hand = TritonKernel(kernels.halves, constexprs={"HALF": 256}, num_warps=2, **common)
    small = TritonKernel(kernels.tuned_once, **common)
    assert chosen.ptx_sha256(Path()) == by_hand.ptx_sha256(Path()) != small.ptx_sha256(Path())
    with pytest.raises(SettingsError, match="HALF is given twice"):
        answer(TritonKernel(kernels.tuned_once, constexprs={"HALF": 64}, **common), assembler)
    hooked = triton.Config({"HALF": 64}, pre_hook=lambda args: None)
    with pytest.raises(SettingsError, match="pre_hook"):
        answer(TritonKernel(kernels.tuned, config=hooked, **common), assembler)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"args": ("*float", 4096)}, r"there is no tensor of type '\*float'"),
        ({"args": ("fp32", 4096)}, "there is no tensor of type 'fp32'"),
        ({"args": ("*fp32",)}, "missing a required argument: 'n'"),
        ({"arch": None}, "arch= does not say what to compile for"),
        ({"ptx_options": "--apply-controls=x.acf"}, "applies an ACF to the baseline"),
    ],
)
def test_mistakes_in_a_call(assembler: Assembler, change: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        answer(waves(**change), assembler)


def test_what_is_no_triton_function(assembler: Assembler) -> None:
    with pytest.raises(SettingsError, match=r"is no @triton.jit function"):
        answer(TritonKernel(lambda x: x, grid=(1,), args=(1,), arch="sm_90a"), assembler)


def test_ptx_options_of_the_user_stay(assembler: Assembler, best: Acf) -> None:
    kernel = waves(ptx_options="-O1 --warn-on-spills")
    for arm in (BASELINE, Arm("best.acf", best)):
        code = answer(kernel, assembler, arm).code
        assert code is not None
        assert "-O 1" in str(code.command_line)
        assert len(code.controls() or ()) == (arm is not BASELINE)


# On a GPU, with a driver of ours in its place


class FakeGpu:
    """A driver whose modules are numbers; it notes what is loaded and launched."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.launched: list[tuple[Any, ...]] = []
        self.unloaded: list[str] = []  # Triton 3.8 and newer unload what nobody holds any more
        self.utils = types.SimpleNamespace(
            load_binary=self._load,
            unload_module=self.unloaded.append,
            get_device_properties=lambda device: {"max_shared_mem": 232448},
        )

    def _load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        self.loaded.append(cubin)
        self.folder = os.environ["TRITON_CACHE_DIR"]
        return f"module {len(self.loaded)}", len(self.loaded), 32, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def run(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            self.launched.append(((x, y, z), stream, function, rest[4:]))

        return run

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 77

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


class FakeTensor(triton.MockTensor):  # type: ignore[misc]
    device = types.SimpleNamespace(type="cuda")

    def __init__(self) -> None:
        super().__init__(triton.language.float32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(driver, "_active", made)
    return made


def test_launches_and_new_seats(gpu: FakeGpu, assembler: Assembler, best: Acf) -> None:
    x, moved = FakeTensor(), FakeTensor()
    kernel = waves(args=(x, 4096), arch=None, grid=lambda meta: (4096 // meta["BLOCK"], 2))
    base = answer(kernel, assembler)
    tuned = answer(kernel, assembler, Arm("best.acf", best))
    assert kernel.arch() == "sm_90a"
    assert gpu.loaded == []  # a build alone loads nothing
    assert base.launch is not None
    assert base.load is not None
    assert tuned.launch is not None
    base.launch()
    base.launch()
    tuned.launch()
    assert gpu.loaded == [base.cubin, tuned.cubin]
    assert gpu.launched == [((4, 2, 1), 77, function, (x, 4096, 1024)) for function in (1, 1, 2)]
    seat = base.load([moved, 4096, 1024])
    seat()
    base.launch()
    assert gpu.loaded[2:] == [base.cubin]
    assert [launch[2:] for launch in gpu.launched[3:]] == [
        (3, (moved, 4096, 1024)),
        (1, (x, 4096, 1024)),
    ]
    assert gpu.unloaded == []
    assert Path(gpu.folder) == assembler.staging.folder / "triton-host"


def test_an_interpreted_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = triton.jit(kernels.waves.fn)
    kernel = TritonKernel(interpreted, grid=(1,), args=("*fp32", 4096), arch="sm_90a")
    with pytest.raises(SettingsError, match="unset TRITON_INTERPRET"):
        kernel.build(None)


def test_an_arch_that_is_not_that_of_the_gpu(gpu: FakeGpu, assembler: Assembler) -> None:
    with pytest.raises(CiqError, match="is for sm_100a, and its tensors are on a GPU of sm_90a"):
        answer(waves(args=(FakeTensor(), 4096), arch="sm_100a"), assembler)


def test_without_a_gpu_the_users_driver_is_neither_asked_nor_changed(
    assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouchable = object()
    monkeypatch.setattr(driver, "_active", untouchable)
    made = answer(waves(), assembler)
    assert made.launch is made.load is None
    assert driver._active is untouchable


def test_tensors_of_torch_move_with_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from triton.tools.tensor_descriptor import TensorDescriptor

    class OnGpu(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True

    whole = torch.arange(32.0).reshape(4, 8).as_subclass(OnGpu)
    args = (
        whole,
        whole[1:3, ::2],
        3,
        whole.to(torch.bfloat16),
        TensorDescriptor.from_tensor(whole, [4, 4]),
        triton.reinterpret(whole, triton.language.int32),
    )
    with fake_core.install(monkeypatch) as machine:
        monkeypatch.setitem(sys.modules, "torch", torch)
        # A torch made for CUDA would start it.
        monkeypatch.setattr(stream, "current", lambda: fake_core.Stream(machine))
        moved = placing.place(args, Random(1))
        x, *rest = waves(args=(whole, 32), arch=None).place(Random(1))
    assert (x.data_ptr() != whole.data_ptr(), rest) == (True, [32, 1024])
    assert moved[2] == 3
    for old, new in zip((*args[:2], args[3]), (*moved[:2], moved[3]), strict=True):
        assert torch.equal(old, new)
        assert old.stride() == new.stride()
        assert old.dtype == new.dtype
    assert moved[0].data_ptr() != whole.data_ptr()
    moved[0][1, 2] = -1
    assert moved[1][0, 1] == -1  # a view of the copy, as it was one of the original
    assert whole[1, 2] == 10
    described, wrapped = moved[4:]
    assert described.base.data_ptr() == wrapped.data_ptr() == moved[0].data_ptr()
    assert (described.block_shape, described.strides) == ([4, 4], whole.stride())
    assert wrapped.dtype == triton.language.int32
