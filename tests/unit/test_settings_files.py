"""Configuration files: which may be trusted by whom, what is not even opened, and that no bytes break anything."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl import cli
from accelctl.errors import UsageError
from accelctl.hal import configfile
from accelctl.hal.configfile import MAX_BYTES, distrust, look, passed
from accelctl.model.configtext import FLAG, NUMBER, TEXT, WHOLE, tables, value_for
from accelctl.model.setting import ABSENT, REFUSED, TAKEN
from tests.helpers import ROOT, environment, run_cli

OTHER = 65534
"""Somebody else: nobody."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of ours, which says that findings of level warn count."""
    path = tmp_path / "accelctl.toml"
    path.write_text('[probe]\nfail-on = "warn"\n', encoding="utf-8")
    path.chmod(0o644)
    return path


def mine() -> int:
    """Whoever runs the tests, or, for root, somebody without root's rule: root's files are good for everybody."""
    return os.geteuid() or 1000


@pytest.fixture
def trusted() -> Iterator[Path]:
    """A folder that root trusts: nobody else can write it or any folder above it."""
    for base in ("/run", "/var/lib", "/root"):
        ways = [Path(base), *Path(base).parents]
        if all(way.is_dir() and way.stat().st_uid == 0 and not way.stat().st_mode & 0o022 for way in ways):
            break
    else:
        pytest.skip("no folder here that only root can write, all the way up")
    folder = Path(tempfile.mkdtemp(prefix="accelctl-test-", dir=base))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def theirs(trusted: Path) -> Path:
    """accelctl.toml in a folder of root's, in which everything is root's."""
    path = trusted / "project" / "accelctl.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text('[probe]\nfail-on = "warn"\n', encoding="utf-8")
    path.chmod(0o644)
    return path


# -- trust --


@as_root
def test_root_takes_what_only_root_can_have_written(theirs: Path) -> None:
    found, data = look(str(theirs), 0)
    assert (found.path, found.state, found.reason) == (str(theirs), TAKEN, "")
    assert data == theirs.read_bytes()


@as_root
@pytest.mark.parametrize(
    ("which", "change", "says"),
    [
        ("file", "owner", "belongs to user 65534, not to root"),
        ("folder", "owner", "belongs to user 65534, not to root"),
        ("file", 0o664, "can be written by group 0"),
        ("file", 0o646, "can be written by everybody"),
        ("folder", 0o775, "can be written by group 0"),
        ("folder", 0o1777, "can be written by everybody"),
    ],
)
def test_root_refuses_what_others_can_have_written(theirs: Path, which: str, change: str | int, says: str) -> None:
    what = theirs if which == "file" else theirs.parent
    if isinstance(change, int):
        what.chmod(change)
    else:
        os.chown(what, OTHER, 0)
    found, data = look(str(theirs), 0)
    assert (found.state, data) == (REFUSED, b"")
    assert found.reason == f"{what} {says}"


@as_root
def test_an_acl_counts_as_the_group(theirs: Path) -> None:
    setfacl = shutil.which("setfacl") or pytest.skip("setfacl is not installed (apt install acl)")
    done = subprocess.run([setfacl, "-m", f"u:{OTHER}:rw", str(theirs)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no ACLs here: {done.stderr.strip()}")
    assert look(str(theirs), 0)[0].reason == f"{theirs} can be written by group 0"


@as_root
@pytest.mark.parametrize("link_of", ["root", "nobody"])
@pytest.mark.parametrize("target_of", ["root", "nobody"])
def test_root_follows_links_between_trusted_places_only(theirs: Path, link_of: str, target_of: str) -> None:
    link = theirs.parent / "link"
    (theirs.parent / "deep").mkdir()
    target = theirs.parent / "deep" / "target.toml"
    target.write_text("", encoding="utf-8")
    link.symlink_to("deep/../deep/target.toml")
    if link_of == "nobody":
        os.lchown(link, OTHER, 0)
    if target_of == "nobody":
        os.chown(target.parent, OTHER, 0)
    found, _ = look(str(link), 0)
    guilty = link if link_of == "nobody" else target.parent
    if link_of == target_of == "root":
        assert found.state == TAKEN
    else:
        assert found.reason == f"{guilty} belongs to user 65534, not to root"


def test_root_takes_nothing_below_tmp(file: Path) -> None:
    """Everybody can write /tmp: a file may wait there for root. (As another user the test's files are not root's.)"""
    found, data = look(str(file), 0)
    assert (found.state, data) == (REFUSED, b"")


def test_others_take_their_own_file_wherever_it_lies(file: Path) -> None:
    file.parent.chmod(0o777)
    assert look(str(file), mine())[0].state == TAKEN


@as_root
def test_others_take_their_own_file_in_a_folder_of_somebody_else(file: Path) -> None:
    os.chown(file, 1000, 1000)
    os.chown(file.parent, OTHER, OTHER)
    assert look(str(file), 1000)[0].state == TAKEN
    assert look(str(file), 0)[0].state == REFUSED


@as_root
@pytest.mark.parametrize("what", ["file", "link"])
def test_others_refuse_files_and_links_of_somebody_else(file: Path, what: str) -> None:
    path = file
    if what == "link":
        path = file.parent / "link"
        path.symlink_to(file)
    os.lchown(path, OTHER, OTHER)
    found, data = look(str(path), 1000)
    assert (found.state, data) == (REFUSED, b"")
    assert found.reason == f"{path} belongs to user 65534, not to you or root"


def test_others_refuse_what_everybody_can_write(file: Path) -> None:
    file.chmod(0o666)
    assert look(str(file), mine())[0].reason == f"{file} can be written by everybody"
    file.chmod(0o664)
    assert look(str(file), mine())[0].state == TAKEN, "the group of a person is the person's business"


# -- the walk --


@given(st.lists(st.sampled_from(["a", "b", "l", "up", "abs", "..", ".", "", "f"]), max_size=8))
def test_the_walk_ends_where_the_kernel_ends(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    """realpath is the oracle; where the kernel does not get through, the walk raises as well."""
    base = tmp_path_factory.getbasetemp() / "walk"
    if not base.exists():
        (base / "a" / "b").mkdir(parents=True)
        (base / "b").mkdir()
        for place in (base, base / "a", base / "b"):
            (place / "f").touch()
            (place / "l").symlink_to("b")
            (place / "up").symlink_to("..")
            (place / "abs").symlink_to(base)
    path = "/".join([str(base), *words])
    try:
        os.stat(path)
    except OSError as error:
        with pytest.raises(OSError, match=os.strerror(error.errno or 0)):
            passed(path)
        return
    steps = passed(path)
    folders = [step for step, status in steps if not stat.S_ISLNK(status.st_mode)]
    assert os.path.realpath(path) in folders
    assert all(os.path.realpath(one) == one for one in folders)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "accelctl.toml").symlink_to("accelctl.toml")
    with pytest.raises(UsageError, match=r"cannot be read \(too many levels of symbolic links"):
        look(str(tmp_path / "accelctl.toml"), mine())


def test_no_step_is_trusted_less_because_it_is_root_s() -> None:
    assert distrust(passed("/"), 1000) == distrust(passed("/"), 0) == ""


# -- what is in the file's place --


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("folder", "a folder"),
        ("pipe", "no plain file"),
        ("huge", "larger than 64 KiB, so not a configuration of accelctl"),
        ("dangling", "a link to nothing"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, what: str, says: str) -> None:
    path = tmp_path / "accelctl.toml"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path, 0o600)
    elif what == "huge":
        path.touch(0o600)
        os.truncate(path, 1 << 40)  # a hole: only reading it whole would hurt
    else:
        path.symlink_to("gone")
    with pytest.raises(UsageError) as caught:
        look(str(path), mine())
    assert caught.value.message.startswith(f"{path}: {says}")


def test_the_largest_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "accelctl.toml"
    path.write_bytes(b"#" * MAX_BYTES)
    path.chmod(0o600)
    assert len(look(str(path), mine())[1]) == MAX_BYTES


@pytest.mark.parametrize("path", ["/nonexistent/accelctl.toml", "/etc/passwd/accelctl.toml"])
def test_what_is_not_there_is_absent(path: str) -> None:
    assert look(path, 0)[0].state == ABSENT


def test_a_replaced_file_is_noticed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(path: str) -> list[configfile.Step]:
        steps = passed(path)
        file.rename(file.parent / "away")
        file.write_text("", encoding="utf-8")
        return steps

    monkeypatch.setattr(configfile, "passed", swapped)
    with pytest.raises(UsageError, match="was replaced while it was read"):
        look(str(file), mine())


# -- where files are looked for --


@pytest.mark.parametrize(
    ("env", "second"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/accelctl/config.toml"),
        ({"XDG_CONFIG_HOME": "", "HOME": "/h"}, "/h/.config/accelctl/config.toml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/accelctl/config.toml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "relative"}, None),
    ],
)
def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], second: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert configfile.places() == (str(tmp_path / "accelctl.toml"), *([second] if second else []))


def test_a_removed_current_folder_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    (tmp_path / "gone").rmdir()
    assert configfile.places() == ("/x/accelctl/config.toml",)


# -- the program --

DROPPED = """
import os, sys
from accelctl import cli
from accelctl.model import configtext
import accelctl.render.settings, difflib
configtext.document("", b"a = 1")
cli.main(["config", "explain", "--no-config"])
sys.stdout.flush()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(cli.main(sys.argv[1:]))
"""


def as_somebody(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The program without root's rights. It starts as root: the interpreter may lie where nobody cannot read."""
    changes = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": "/nonexistent", **env}
    if os.geteuid() != 0:
        return run_cli(*words, env={**changes, "PYTHONPATH": str(ROOT)}, cwd=folder)
    for parent in (folder, *folder.parents):
        if "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o055)
    return subprocess.run(
        [sys.executable, "-c", DROPPED, *words],
        env=environment(changes),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


@as_root
def test_as_root_the_program_takes_a_file_of_root_s(theirs: Path) -> None:
    env = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": "/nonexistent"}
    done = run_cli("config", "probe", env=env, cwd=theirs.parent, code=0)
    assert f"{theirs}: taken\n" in done.stdout
    assert f'"warn"  {theirs}\n' in done.stdout
    assert done.stderr == ""


@as_root
def test_as_root_the_program_says_what_it_did_not_take(theirs: Path) -> None:
    os.chown(theirs.parent, OTHER, OTHER)
    theirs.write_text("whatever stands here is not looked at", encoding="utf-8")
    env = {"ACCELCTL_NO_CONFIG": None, "XDG_CONFIG_HOME": "/nonexistent"}
    done = run_cli("config", "probe", env=env, cwd=theirs.parent, code=0)
    reason = f"not taken: {theirs.parent} belongs to user 65534, not to root"
    assert done.stderr == f"accelctl: warning: {theirs}: {reason}\n"
    assert f"{theirs}: {reason}\n" in done.stdout
    assert '"error"  default\n' in done.stdout


@as_root
def test_a_file_that_its_owner_may_not_read_is_one_line(file: Path) -> None:
    os.chown(file, OTHER, OTHER)
    file.chmod(0)
    done = as_somebody(file.parent, "config", "explain")
    assert done.returncode == 2
    assert done.stderr == f"accelctl config: {file}: cannot be read (permission denied)\n"


@as_root
def test_a_home_that_is_closed_is_said_and_passed_over(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0)
    done = as_somebody(tmp_path, "config", "explain", XDG_CONFIG_HOME=str(tmp_path / "home"))
    assert done.returncode == 0
    place = f"{tmp_path}/home/accelctl/config.toml"
    assert done.stderr == f"accelctl: warning: {place}: not taken: {place}: no permission to look there\n"


# -- any bytes --


def read_as_config(data: bytes) -> dict[str, dict[str, object]]:
    try:
        return tables("/x/accelctl.toml", data, cli.COMMANDS)
    except UsageError as error:
        one_line(error, "/x/accelctl.toml: ")
        return {}


def one_line(error: UsageError, start: str) -> None:
    assert error.message.startswith(start)
    assert len(error.message) < 400


KEYS = st.sampled_from([*cli.COMMANDS, "prob", "a.b", '"q"', "json", "fail-on"])
SCALARS = st.sampled_from(
    ["true", "1", "-0", "1e999", "nan", "'t'", '"\\u0000"', "2020-01-01", "0x" + "f" * 5000, "9" * 5000, "[]", "{}"]
)
LINES = st.one_of(
    st.builds("[{}]".format, KEYS),
    st.builds("[[{}]]".format, KEYS),
    st.builds("{} = {}".format, KEYS, SCALARS),
    st.builds("{} = [{}, {}]".format, KEYS, SCALARS, SCALARS),
    st.builds("{} = {{{} = {}}}".format, KEYS, KEYS, SCALARS),
    st.text(max_size=12),
)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    read_as_config(data)


@given(st.lists(LINES, max_size=6))
def test_no_toml_breaks_it(lines: list[str]) -> None:
    """Also what parses: every value, as every kind of option, is taken or refused in one line."""
    for table in read_as_config("\n".join(lines).encode("utf-8", "surrogatepass")).values():
        for value in table.values():
            for kind in (FLAG, WHOLE, NUMBER, TEXT):
                for many in (1, 2, -1):
                    check(kind, many, value)


def check(kind: str, many: int, value: object) -> None:
    try:
        made = value_for(kind, many, value, "/x: [probe] y")
    except UsageError as error:
        one_line(error, "/x: [probe] y: ")
        return
    kinds = {FLAG: bool, WHOLE: int, NUMBER: (int, float), TEXT: str}
    for one in [made] if many == 1 else made:
        assert isinstance(one, kinds[kind])  # type: ignore[arg-type]
        assert isinstance(one, bool) is (kind == FLAG)
        assert "\0" not in str(one)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a = 1\n\n\xc3(", b"\0" * 100, b"\x1b[31m = 1"], ids=range(4))
def test_garbage_ends_the_program_with_one_line(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    done = as_somebody(file.parent, "config", "explain")
    assert done.returncode == 2
    assert done.stderr.startswith(f"accelctl config: {file}: ")
    assert done.stderr.endswith("\n")
    assert done.stderr[:-1].isprintable()
