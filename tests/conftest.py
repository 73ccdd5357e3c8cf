"""What all tests share: a marker by folder, a clean environment, and the folder with captured machines."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

DECIDING = (
    "NO_COLOR",
    "FORCE_COLOR",
    "COLORTERM",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
"""Variables of the person who runs the tests that would change outputs."""

KEPT = ("ACCELCTL_SHARED", "ACCELCTL_STRICT", "ACCELCTL_NO_CONFIG")

#: Files that take long and prove nothing more on a second interpreter: search for odd inputs, statistics, checks of the
#: source, whole runs of programs whose parts are tested there, and installations.
NOT_REPEATED = {
    "test_fuzz_rules.py",
    "test_fuzz_trees.py",
    "test_fuzz_inputs.py",
    "test_umd_fuzz.py",
    "test_umd_soak.py",
    "test_serve_command.py",
    "test_smoke_cases.py",
    "test_smoke_mutants.py",
    "test_layout.py",
    "test_docs_examples.py",
    "test_bench_command.py",
    "test_bringup_command.py",
    "test_bringup_broken.py",
    "test_caps.py",
    "test_capability_file.py",
    "test_semantics.py",
    "test_backends_canary.py",
    "test_completions.py",
    "test_archive.py",
    "test_memory_ledger.py",
    "test_filters.py",
    "test_uapi.py",
    "test_uapi_nvidia.py",
    "test_packaging.py",
    "test_plugins_stranger.py",
    "test_pyz.py",
    "test_sim_model.py",
    "test_sim_noise.py",
    "test_smoke_command.py",
    "test_telemetry_demo.py",
    "test_verdict_noise.py",
}


def pytest_configure(config: pytest.Config) -> None:
    """Property tests have no time limit per example: on a loaded machine it only makes noise.

    A mistake in a rule fails the test instead of becoming a finding, and nobody's own configuration counts: set here,
    because fixtures of modules and sessions run before those of a test.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what is to run behind it like that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["ACCELCTL_STRICT"] = os.environ["ACCELCTL_NO_CONFIG"] = "1"
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # tests serve and fork in one process, where gRPC's handlers crash
    if os.environ.get("ACCELCTL_GUEST"):  # an emulated machine needs 20 s to import it, and no guest test uses it
        return
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("accelctl", deadline=None, print_blob=True)
    settings.load_profile("accelctl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test gets the marker of the folder below tests/ that it lies in."""
    tests = ROOT / "tests"
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if (tests / folder).is_dir():
            item.add_marker(folder)
        if item.path.name in NOT_REPEATED:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Width pinned to 80 columns, and nothing from the environment that decides about output."""
    for name in [*DECIDING, *(n for n in os.environ if n.startswith("ACCELCTL_") and n not in KEPT)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def shared_folder() -> Path:
    """Where captured machines and tables lie beside a checkout; it need not be there."""
    named = os.environ.get("ACCELCTL_SHARED")
    return Path(named) if named else ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with captured machines and tables that lies beside a checkout, or a loud skip."""
    folder = shared_folder()
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (set ACCELCTL_SHARED to the folder that holds machines/ and errors/)")
    return folder


@pytest.fixture(autouse=True)
def _open_files_of_its_own() -> Iterator[None]:
    """Tests of leaks leave files open on purpose; the next test's count of them starts where this one's did."""
    from accelctl.hal import devfile

    before = dict(devfile._open)
    yield
    devfile._open.clear()
    devfile._open.update(before)
