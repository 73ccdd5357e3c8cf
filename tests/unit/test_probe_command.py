"""accelctl probe and capture as a user runs them: options, outputs, exit statuses, one clear line for every mistake."""

from __future__ import annotations

import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from accelctl.accept import watched, why
from accelctl.accept.select import select
from accelctl.accept.why import ask
from accelctl.errors import AccelError, NoDeviceError, UsageError
from accelctl.hal.reader import Stuck
from accelctl.hal.root import SysRoot
from accelctl.model.reading import absent
from accelctl.render.layout import cells
from accelctl.render.term import Term
from accelctl.render.why import why_document, why_text
from tests.helpers import ROOT, environment, run_cli
from tests.reports import asleep, full_machine, gpu, report
from tests.synthetic import make_machine


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with two healthy cards."""
    return str(make_machine(tmp_path_factory.mktemp("cards"), 2))


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with a kernel log in which one card falls off the bus."""
    root = make_machine(tmp_path_factory.mktemp("lost"), 2)
    (root / "accelctl-kmsg.txt").write_text("[    1.0] amdgpu 0000:01:00.0: amdgpu: device lost from bus!\n")
    return str(root)


def one_line(stderr: str, *words: str) -> None:
    """An error is one line and at most one with what to type."""
    lines = stderr.splitlines()
    assert 1 <= len(lines) <= 2, stderr
    assert lines[0].startswith("accelctl probe: ") or lines[0].startswith("accelctl capture: ")
    assert all(word in stderr for word in words), stderr
    assert "Traceback" not in stderr


# -- outputs --


def test_text_json_and_brief_of_a_captured_machine(cards: str) -> None:
    assert "2 accelerators: 2 ok" in run_cli("probe", "--root", cards, code=0).stdout
    whole = json.loads(run_cli("probe", "--root", cards, "--json", code=0).stdout)
    assert whole["schema"] == "accelctl.probe/1"
    assert whole["summary"]["accelerators"] == 2
    lines = run_cli("probe", "--root", cards, "--brief", code=0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_second_run_is_byte_identical(cards: str) -> None:
    for options in ([], ["--json"], ["--brief"], ["--junit", "-"]):
        first, second = (run_cli("probe", "--root", cards, *options).stdout for _ in range(2))
        assert first == second, options


def test_without_evidence_two_equal_machines_give_equal_bytes(cards: str, tmp_path: Path) -> None:
    other = make_machine(tmp_path / "other", 2)
    (other / "sys/devices/pci0000:00/0000:00:00.0/0000:01:00.0/unique_id").write_text("1234567890abcdef\n")
    runs = [run_cli("probe", "--root", root, "--json", "--no-evidence", code=0).stdout for root in (cards, str(other))]
    assert runs[0] == runs[1]
    assert "evidence" not in runs[0]


def test_this_machine_is_probed_live() -> None:
    whole = json.loads(run_cli("probe", "--json").stdout)
    assert (whole["root"], whole["live"]) == ("/", True)


def test_no_accelerator_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    done = run_cli("probe", "--root", str(tmp_path), code=0)
    assert "No accelerator found." in done.stdout
    assert run_cli("probe", "--root", str(tmp_path), "--brief", code=0).stdout == ""


# -- exit statuses --


@pytest.mark.parametrize(("level", "code"), [("critical", 1), ("error", 1), ("never", 0)])
def test_fail_on(lost: str, level: str, code: int) -> None:
    done = run_cli("probe", "--root", lost, "--fail-on", level, code=code)
    assert "critical" in done.stdout


def test_healthy_machine_passes_at_the_default_level(cards: str) -> None:
    run_cli("probe", "--root", cards, code=0)
    done = run_cli("probe", "--root", cards, "--fail-on", "soon", code=2)
    assert "critical" in done.stderr


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["0000:01:00.0"], ["0000:01:00.0"]),
        (["renderD129"], ["0000:02:00.0"]),
        (["01:00.0", "pci:0000:02:00.0"], ["0000:01:00.0", "0000:02:00.0"]),
        (["driver=amdgpu,kind=physical"], ["0000:01:00.0", "0000:02:00.0"]),
    ],
)
def test_device_filters(cards: str, filters: list[str], found: list[str]) -> None:
    options = [word for text in filters for word in ("--device", text)]
    lines = run_cli("probe", "--root", cards, "--brief", *options, code=0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == found


def test_a_filter_that_nothing_fits_is_exit_3(cards: str) -> None:
    done = run_cli("probe", "--root", cards, "--device", "driver=xe", code=3)
    one_line(done.stderr, "no device fits --device driver=xe", "0000:01:00.0, 0000:02:00.0")
    assert done.stdout == ""


def test_a_filter_keeps_findings_of_its_devices_and_of_the_machine() -> None:
    made = select(full_machine(), ["0000:02:00.0"])
    assert [device.id for device in made.devices] == ["0000:02:00.0"]
    assert [one.device for one in made.findings] == ["0000:02:00.0", None]
    with pytest.raises(NoDeviceError, match="no device at all"):
        select(report(), ["0000:02:00.0"])


BAD: list[tuple[list[str], tuple[str, ...]]] = [
    (["--root", "/none/such"], ("/none/such: no such file or folder",)),
    (["--root", "/dev/null"], ("neither a folder nor a regular file",)),
    (["--device", "="], ("--device '='",)),
    (["--no-evidence"], ("--no-evidence only goes with --json",)),
    (["--brief", "--json"], ("--brief and --json exclude each other",)),
    (["--why", "0.link", "--brief"], ("exclude each other",)),
    (["--expect", "/none"], ("/none: cannot be read",)),
    (["--diff", "/none", "/none"], ("/none: no such file or folder",)),
    (["--kmsg", "/none"], ("/none: cannot be read",)),
    (["--why", "0000:99:00.0.link"], ("no such device", "here: machine, 0000:01:00.0")),
    (["--why", "0.lnk.width"], ("has no such field",)),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=" ".join)
def test_mistakes_are_one_line_and_exit_2(cards: str, options: list[str], words: tuple[str, ...]) -> None:
    root = [] if "--root" in options else ["--root", cards]
    done = run_cli("probe", *root, *options, code=2)
    one_line(done.stderr, *words)
    assert done.stdout == ""


def test_hostile_archives_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    for data in (b"", b"\x00" * 2048, b"\xfd7zXZ\x00broken", os.urandom(4096)):
        file.write_bytes(data)
        one_line(run_cli("probe", "--root", str(file), code=2).stderr, "x.tar")


# -- files --


def test_junit_is_written_beside_the_report(lost: str, tmp_path: Path) -> None:
    file = tmp_path / "out.xml"
    done = run_cli("probe", "--root", lost, "--junit", str(file), code=1)
    assert "Findings" in done.stdout
    assert int(ElementTree.parse(file).getroot().get("failures", "0")) >= 1
    printed = ElementTree.fromstring(
        run_cli("probe", "--root", lost, "--junit", "-", "--fail-on", "never", code=0).stdout
    )
    assert printed.get("failures") == "0"
    one_line(
        run_cli("probe", "--root", lost, "--junit", "/none/x.xml", code=2).stderr, "/none/x.xml: cannot be written"
    )


def test_expect_and_save_expect(cards: str, tmp_path: Path) -> None:
    file = tmp_path / "type.toml"
    assert run_cli("probe", "--root", cards, "--save-expect", str(file), code=0).stdout == ""
    assert "Compared with" in run_cli("probe", "--root", cards, "--expect", str(file), code=0).stdout
    one_line(run_cli("probe", "--root", cards, "--save-expect", str(file), code=2).stderr, "such a file already")
    printed = run_cli("probe", "--root", cards, "--save-expect", "-", code=0).stdout
    assert printed == file.read_text(encoding="utf-8")
    file.write_text(printed.replace('"link/max_width" = 16', '"link/max_width" = 8').replace("count = 2", "count = 3"))
    done = run_cli("probe", "--root", cards, "--expect", str(file), code=1)
    assert "EXPECT-DIFFERS" in done.stdout
    assert "EXPECT-MISSING-DEVICE" in done.stdout
    whole = json.loads(run_cli("probe", "--root", cards, "--expect", str(file), "--json", code=1).stdout)
    assert {one["fact"] for one in whole["expect"]["differences"]} == {"link/max_width"}
    assert whole["summary"]["worst"] == "error"


def test_expectations_are_of_the_machine_not_of_the_selection(cards: str, tmp_path: Path) -> None:
    file = tmp_path / "type.toml"
    run_cli("probe", "--root", cards, "--save-expect", str(file), code=0)
    run_cli("probe", "--root", cards, "--expect", str(file), "--device", "0000:01:00.0", code=0)


def test_diff_of_folders_archives_and_documents(cards: str, tmp_path: Path) -> None:
    other = make_machine(tmp_path / "other", 1)
    document = tmp_path / "a.json"
    document.write_text(run_cli("probe", "--root", cards, "--json").stdout, encoding="ascii")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.add(other, ".")
    for a in (cards, str(document)):
        assert "no difference" in run_cli("probe", "--diff", a, cards, code=0).stdout
        done = run_cli("probe", "--diff", a, str(tmp_path / "b.tar"), code=1)
        assert "0000:02:00.0" in done.stdout
        whole = json.loads(run_cli("probe", "--diff", a, str(other), "--json", code=1).stdout)
        assert [one["state"] for one in whole["changes"] if one["device"] == "0000:02:00.0"] == ["gone"]


def test_kernel_log_by_option(cards: str, tmp_path: Path) -> None:
    line = "amdgpu 0000:01:00.0: amdgpu: device lost from bus!\n"
    file = tmp_path / "kernel.log"
    file.write_text(line)
    for options, given in (([str(file)], ""), (["-"], line)):
        done = run_cli("probe", "--root", cards, "--kmsg", *options, stdin=given, code=1)
        assert "lost" in done.stdout
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    feeder = subprocess.Popen(["/bin/sh", "-c", f'printf "%s" "$0" > {fifo}', line])
    try:
        assert "lost" in run_cli("probe", "--root", cards, "--kmsg", str(fifo), code=1).stdout
    finally:
        feeder.wait(10)


# -- why --


def test_why_on_the_command_line(cards: str) -> None:
    text = run_cli("probe", "--root", cards, "--why", "gpu1.link.max_speed_gts", code=0).stdout
    assert text.splitlines() == [
        "0000:02:00.0  link/max_speed_gts",
        "  value    16.0 GT/s",
        "  source   sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/max_link_speed",
        "  raw      16.0 GT/s PCIe",
    ]
    whole = json.loads(run_cli("probe", "--root", cards, "--why", "machine.kernel.release", "--json", code=0).stdout)
    assert whole["schema"] == "accelctl.why/1"
    assert whole["facts"]["kernel/release"]["value"] == "6.12.0"


@pytest.mark.parametrize(
    "question",
    [
        "0000:01:00.0.link.max_width", "0000:01:00.0/link/max_width", "01:00.0.link/max_width", "0.link.max_width",
        "gpu0.link.max_width", "GPU0.LINK.MAX_WIDTH", "renderD128.link.max_width", "/dev/dri/renderD128.link.max_width",
        "dri/card0.link.max_width",
    ],
)  # fmt: skip
def test_ways_to_name_a_device(question: str) -> None:
    owner, facts = ask(report(gpu(0), gpu(1)), question)
    assert owner == "0000:01:00.0"
    assert list(facts) == ["link/max_width"]


def test_a_prefix_answers_with_everything_below() -> None:
    assert set(ask(report(gpu(0)), "0.link")[1]) == {
        "link/current_speed_gts",
        "link/current_width",
        "link/max_speed_gts",
        "link/max_width",
        "link/narrowest",
        "link/narrowest_gbs",
    }
    assert len(ask(report(gpu(0)), "0")[1]) == len(gpu(0).facts)
    assert ask(report(gpu(0)), "machine.numa.online")[0] == why.MACHINE


def test_loose_words_find_the_fact() -> None:
    assert list(ask(report(gpu(0)), "gpu0.memory.used")[1]) == ["memory/vram_used_bytes"]
    assert list(ask(report(gpu(0)), "0.vram total")[1]) == ["memory/vram_total_bytes"]


def test_keys_with_dots_of_their_own() -> None:
    device = gpu(0)
    device.facts["upstream/0000:00:01.0/max_width"] = device.facts["link/max_width"]
    assert list(ask(report(device), "0.upstream.0000:00:01.0.max_width")[1]) == ["upstream/0000:00:01.0/max_width"]


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        ("gpu7.link", NoDeviceError, "no such device; here: machine, 0000:01:00.0"),
        ("nothing.link", UsageError, "no such device"),
        ("0.link.max_wdth", UsageError, "near: link/max_width"),
        ("0.zzzzzzzz", UsageError, "no such field"),
        ("", UsageError, "no such device"),
    ],
)
def test_questions_without_an_answer(question: str, error: type[AccelError], words: str) -> None:
    with pytest.raises(error) as caught:
        ask(report(gpu(0)), question)
    assert words in caught.value.message


def test_why_shows_the_chain_of_an_absence() -> None:
    device = asleep(gpu(0))
    device.facts["numa/node"] = absent("sys/n", "malformed", errno="EINVAL", detail="not a number", raw="x\ny\x1b")
    owner, facts = ask(report(device), "0.link.current_width")
    assert why_text(owner, facts, Term(False, None, None, True)).splitlines() == [
        "0000:01:00.0  link/current_width",
        "  value    none",
        "  because  asleep: reading it would wake a sleeping device",
        "  do       accelctl probe --allow-wake",
        f"  source   {device.path}/current_link_width",
        "  scope    volatile (changes by itself)",
        "  more     accelctl explain asleep",
    ]
    text = why_text(*ask(report(device), "0.numa"), Term(True, 60, None, True))
    assert "  errno    EINVAL" in text
    assert "  raw      x\n           y?\n" in text
    assert why_document(owner, facts)["facts"]["link/current_width"]["absence"]["kind"] == "asleep"
    assert all(cells(line) <= 70 for line in text.splitlines())


# -- hangs --


def test_a_path_that_hangs_becomes_a_finding_of_its_device() -> None:
    made = report(gpu(0))
    path = made.devices[0].path + "/gpu_metrics"
    watched.add_stuck(made, [Stuck(path, 5.25, "D", "ttm_bo_wait"), Stuck("proc/x", 5.0, "killed by SIGKILL", "")])
    assert made.stuck == [path, "proc/x"]
    first, second = sorted(made.findings, key=lambda one: one.device or "", reverse=True)
    assert (first.id, first.level, first.device) == ("HANG-READ", "error", "0000:01:00.0")
    assert first.title == f"reading {path} did not come back within 5 s"
    assert first.evidence[0].raw == "after 5.2 s the reader waits in the kernel and cannot be ended, in ttm_bo_wait"
    assert second.device is None


def test_a_real_hang_is_named_and_the_rest_is_reported(cards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file that never answers: the scan ends with everything else, and says which file."""
    real: Callable[..., Any] = SysRoot._bytes

    def stuck(self: SysRoot, path: str, limit: int) -> bytes:
        if path.endswith("0000:02:00.0/vbios_version"):
            self._touch(path)
            time.sleep(60)
        return real(self, path, limit)  # type: ignore[no-any-return]

    monkeypatch.setattr(SysRoot, "_bytes", stuck)
    made = watched.scan(cards, deadline_s=0.3)
    assert [path.rpartition("/")[2] for path in made.stuck] == ["vbios_version"]
    assert [one.device for one in made.findings if one.id == "HANG-READ"] == ["0000:02:00.0"]
    reading = made.devices[1].reading("vbios/version")
    assert reading is not None
    assert reading.absence is not None
    assert reading.absence.kind == "timed_out"
    assert made.devices[0].value("vbios/version") == "113-D70201-00"


# -- capture --


def test_capture_and_look_at_it(cards: str, tmp_path: Path) -> None:
    file = tmp_path / "c.tar.xz"
    done = run_cli("capture", str(file), "--root", cards, code=0)
    assert done.stdout == ""
    assert f"wrote {file}: " in done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    options = ("--json", "--no-evidence")
    assert run_cli("probe", "--root", str(file), *options).stdout == run_cli("probe", "--root", cards, *options).stdout
    one_line(run_cli("capture", str(file), "--root", cards, code=2).stderr, "such a file already", "--force")
    run_cli("capture", str(file), "--root", cards, "--force", code=0)


def test_capture_to_a_pipe(cards: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accelctl", "capture", "-", "--root", cards],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(done.stdout))) as tar:
        assert "accelctl-capture.json" in tar.getnames()
    assert b"captured: " in done.stderr


def test_capture_with_one_key_twice_is_the_same_archive(cards: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    for name in ("a", "b"):
        run_cli("capture", str(tmp_path / name), "--root", cards, "--key", str(key), code=0)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    one_line(run_cli("capture", str(tmp_path / "c"), "--key", "/none", code=2).stderr, "/none: cannot be read")


def test_capture_where_it_cannot_be_written(cards: str) -> None:
    one_line(run_cli("capture", "/none/x", "--root", cards, code=2).stderr, "/none/x: cannot be written")
