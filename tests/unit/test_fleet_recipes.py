"""Recipes of docs/fleets.md do what the page says: scripts are run by sh with the real accelctl and stand-ins of the
cluster's tools, YAML and configuration lines are taken apart."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import docskit, synthetic
from tests.helpers import ROOT, environment, run_cli

PAGE = ROOT / "docs" / "fleets.md"
BLOCKS = docskit.blocks(PAGE)
SCRIPTS = {match[1]: block for block in BLOCKS if (match := re.match(r"# (/\S+)$", [*block.lines, "", ""][1]))}
HEALTH, PROLOG, CHECK = (
    "/usr/local/sbin/accelctl-health",
    "/etc/slurm/prolog.d/50-accelctl",
    "/usr/local/lib/nagios/plugins/check_accelctl",
)
MANIFESTS = [block for block in BLOCKS if block.language == "yaml"]


def text(block: docskit.Block) -> str:
    return "\n".join(block.lines) + "\n"


def snippet(word: str) -> list[str]:
    found = [text(block) for block in BLOCKS if block.words == word]
    assert found, word
    return found


class Cluster:
    """A folder of programs in front of PATH, and two machines: a good one and one with a critical finding."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir()
        self.log = folder / "calls"
        self.good = synthetic.make_machine(folder, 1)
        self.quiet, self.kmsg = folder / "quiet", folder / "kmsg"
        self.quiet.write_text(QUIET, encoding="ascii")
        self.kmsg.write_text(QUIET + FATAL, encoding="ascii")
        self.program("accelctl", f'exec {shlex.quote(sys.executable)} -m accelctl "$@"')
        self.program(
            "scontrol",
            f'echo "$*" >> {self.log}\n[ "$1" = show ] && echo "${{NODE_STATE:-State=IDLE}} Other=x"\nexit 0',
        )
        self.program("hostname", "echo node007")

    def program(self, name: str, body: str) -> None:
        """A stand-in."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def stand_in(self, body: str) -> None:
        """Shell that accelctl runs first; what does not leave there goes on as the real one."""
        self.program("real", f'exec {shlex.quote(sys.executable)} -m accelctl "$@"')
        self.program("accelctl", f'{body}\nexec real "$@"')

    def run(self, script: str, sick: bool = False, **changes: str) -> subprocess.CompletedProcess[str]:
        """A script, as the scheduler would start it."""
        variables = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "ACCELCTL_PROBE_ROOT": str(self.good),
            "ACCELCTL_PROBE_KMSG": str(self.kmsg if sick else self.quiet),
            "HOME": str(self.folder),
            **changes,
        }
        return subprocess.run(
            ["sh", "-c", script],
            env=environment(variables),
            cwd=self.folder,
            capture_output=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """What scontrol was told."""
        return self.log.read_text().splitlines() if self.log.exists() else []


QUIET = "[    0.000000] Linux version 6.12\n"
FATAL = """[   10.000000] pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0
[   10.000001] amdgpu 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_every_script_is_shell(tmp_path: Path) -> None:
    assert set(SCRIPTS) == {HEALTH, PROLOG, CHECK}
    shell = [text(block) for block in BLOCKS if block.language == "sh"]
    assert len(shell) == 7
    for script in shell:
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, encoding="utf-8", check=False)
        assert done.stderr == "", script


def test_the_two_machines_are_what_they_are_meant_to_be(cluster: Cluster) -> None:
    worst = {
        sick: json.loads(cluster.run("accelctl probe --json", sick=sick).stdout)["summary"]["worst"]
        for sick in (False, True)
    }
    assert worst[False] in ("ok", "info")
    assert worst[True] in ("error", "critical")


def test_health_check_leaves_a_good_node_alone(cluster: Cluster) -> None:
    done = cluster.run(text(SCRIPTS[HEALTH]))
    assert (done.returncode, done.stdout, done.stderr, cluster.calls()) == (0, "", "", [])


def test_health_check_drains_a_sick_node_with_the_reason(cluster: Cluster) -> None:
    done = cluster.run(text(SCRIPTS[HEALTH]), sick=True)
    assert (done.returncode, done.stderr) == (0, "")  # else slurmd would not register
    asked, told = cluster.calls()
    assert asked == "show node node007"
    assert told.startswith("update NodeName=node007 State=DRAIN Reason=ACCELCTL CRITICAL - 1 accelerator")
    assert "PCI-AER-FATAL" in told
    assert "|" not in told


def test_health_check_drains_once_and_takes_slurms_name_for_the_node(cluster: Cluster) -> None:
    cluster.run(text(SCRIPTS[HEALTH]), sick=True, NODE_STATE="State=IDLE+DRAIN", SLURMD_NODENAME="n1")
    assert cluster.calls() == ["show node n1"]


@pytest.mark.parametrize("body", ["exit 127", "echo rubbish; exit 1", "exit 6"])
def test_health_check_drains_nobody_for_a_broken_installation(cluster: Cluster, body: str) -> None:
    cluster.stand_in(f'[ "$1" = merge ] || {{ {body}; }}')
    assert cluster.run(text(SCRIPTS[HEALTH]), sick=True).returncode == 0
    assert cluster.calls() == []


def test_prolog_passes_a_good_node_and_stops_a_sick_one(cluster: Cluster) -> None:
    assert cluster.run(text(SCRIPTS[PROLOG])).returncode == 0
    done = cluster.run(text(SCRIPTS[PROLOG]), sick=True)
    assert done.returncode == 1
    assert done.stdout == ""  # slurmd would show it to the job
    assert "a finding" in done.stderr


def test_prolog_compares_with_what_the_type_must_have(cluster: Cluster) -> None:
    wanted = cluster.folder / "type.toml"
    cluster.run(f"accelctl probe --save-expect {wanted}")
    assert cluster.run(text(SCRIPTS[PROLOG]), ACCELCTL_TYPE=str(wanted)).returncode == 0
    wanted.write_text(wanted.read_text().replace("0000:01:00.0", "0000:07:00.0").replace("0x744c", "0x1234"))
    assert cluster.run(text(SCRIPTS[PROLOG]), ACCELCTL_TYPE=str(wanted)).returncode == 1


@pytest.mark.parametrize(
    ("status", "ends"),
    [(0, 0), (1, 1), (2, 0), (3, 0), (5, 0), (6, 1), (7, 1), (77, 0), (124, 1), (126, 0), (127, 0), (137, 1)],
)
def test_prolog_blames_the_node_only_for_what_is_the_nodes(cluster: Cluster, status: int, ends: int) -> None:
    cluster.program("accelctl", f"exit {status}")
    assert cluster.run(text(SCRIPTS[PROLOG])).returncode == ends


@pytest.mark.parametrize(("sick", "status", "word"), [(False, 0, "OK"), (True, 2, "CRITICAL")])
def test_check_for_nagios(cluster: Cluster, sick: bool, status: int, word: str) -> None:
    done = cluster.run(text(SCRIPTS[CHECK]), sick=sick)
    assert done.returncode == status
    assert re.fullmatch(rf"ACCELCTL {word} - .* \| nodes=1 odd=0 bad=0\n", done.stdout)


def test_check_for_nagios_without_an_answer(cluster: Cluster) -> None:
    cluster.stand_in('[ "$1" = merge ] || exit 127')
    done = cluster.run(text(SCRIPTS[CHECK]))
    assert done.returncode == 3
    assert done.stdout.startswith("ACCELCTL UNKNOWN - ")


CLUSH = """
b=; [ "$2" = -b ] && { b=1; shift; }
for n in node1 node2 node3; do
    if [ "$b" ]; then sh -c "$2" > out.$n; else sh -c "$2" | sed "s/^/$n: /"; fi
done
[ "$b" ] || exit 0
cmp -s out.node1 out.node2 && cmp -s out.node1 out.node3 || exit 1
echo '---------------'; echo 'node[1-3] (3)'; echo '---------------'; cat out.node1
"""
"""What clush does with -a, and with -a -b where all nodes answer the same."""


def test_clush(cluster: Cluster) -> None:
    cluster.program("clush", CLUSH)
    cluster.program("nodeset", "echo 'node[1-4]'")
    measured, gathered, merged = snippet("clush")
    shown = cluster.run(gathered).stdout
    assert "node[1-3] (3)" in shown
    assert json.loads(shown.rpartition("---\n")[2])["schema"] == "accelctl.probe/1"
    done = cluster.run(merged)
    assert done.returncode == 1
    assert "node[1-3]  3 nodes" in done.stdout
    assert "No report of 1 node: node4" in done.stdout
    (cluster.folder / "bench.json").write_text('{"schema": "accelctl.bench/1", "verdict": "measured"}\n')
    cluster.stand_in(f'[ "$1" = bench ] && exec cat {cluster.folder}/bench.json')
    assert "accelctl.bench/1: 3 nodes, all equal" in cluster.run(measured).stdout


def test_kubectl(cluster: Cluster) -> None:
    listing = 'echo "accelctl-abc node-a"; echo "accelctl-def node-b"'
    cluster.program("kubectl", f'[ "$1" = get ] && {{ {listing}; exit 0; }}\nshift 3; exec "$@"')
    done = cluster.run(snippet("kubectl")[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert "node-a,node-b  2 nodes" in done.stdout


CHECK_CMD_STATUS = """
check_cmd_status() {
    limit=5 want=
    while getopts t:r: o; do case $o in t) limit=$OPTARG ;; r) want=$OPTARG ;; *) return 9 ;; esac; done
    shift $((OPTIND - 1)); timeout "$limit" "$@" > /dev/null; [ $? -eq "$want" ]
}
"""


@pytest.mark.parametrize("sick", [False, True])
def test_nhc_line(cluster: Cluster, sick: bool) -> None:
    [line] = [text(block).strip() for block in BLOCKS if block.language == "nhc"]
    target, bars, check = line.partition(" || ")
    assert (target, bars) == ("*", " || ")
    assert cluster.run(f"{CHECK_CMD_STATUS}\n{check}", sick=sick).returncode == int(sick)


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def parsed(lines: list[str], indent: int = 0) -> Any:
    """The YAML of the page: mappings and lists by two blanks, plain scalars, and lists in JSON's form. Anything else
    fails."""
    if re.match(r" *- ", lines[0]):
        items: list[list[str]] = []
        for line in lines:
            assert line.startswith(" " * indent), line
            if line[indent : indent + 2] == "- ":
                items.append([" " * (indent + 2) + line[indent + 2 :]])
            else:
                items[-1].append(line)
        return [parsed(item, indent + 2) for item in items]
    found: dict[str, Any] = {}
    at = 0
    while at < len(lines):
        match = re.fullmatch(r"( *)([A-Za-z][\w.-]*):(?: (\S.*))?", lines[at])
        assert match is not None, lines[at]
        assert len(match[1]) == indent, lines[at]
        assert match[2] not in found, lines[at]
        end = at + 1
        while end < len(lines) and (len(lines[end]) - len(lines[end].lstrip()) > indent):
            end += 1
        found[match[2]] = scalar(match[3]) if match[3] else parsed(lines[at + 1 : end], indent + 2)
        assert bool(match[3]) is (end == at + 1), lines[at]
        at = end
    return found


def scalar(word: str) -> Any:
    if word[0] == "[" or word in ("true", "false") or word.isdigit():
        return json.loads(word)
    assert re.fullmatch(r"[\w./:-]+", word), word
    return word


def containers(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(document["spec"]["template"]["spec"]["containers"])


def test_manifests_have_the_parts_that_kubernetes_wants() -> None:
    job, daemons = (parsed(list(block.lines)) for block in MANIFESTS)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] == 0
    assert (daemons["apiVersion"], daemons["kind"]) == ("apps/v1", "DaemonSet")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert daemons["spec"]["selector"]["matchLabels"] == labels == {"app": "accelctl"}
    for document in (job, daemons):
        pod = document["spec"]["template"]["spec"]
        volumes = {one["name"] for one in pod["volumes"]}
        assert all(one["name"] and one["image"] and one["command"] for one in pod["containers"])
        assert {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]} == volumes
        assert all(one["securityContext"]["privileged"] is True for one in pod["containers"])
    probe = containers(daemons)[0]["readinessProbe"]
    assert probe["timeoutSeconds"] < probe["periodSeconds"]
    assert f"-l app={labels['app']}" in snippet("kubectl")[0]


def test_commands_of_the_manifests_run(cluster: Cluster) -> None:
    job, daemons = (parsed(list(block.lines)) for block in MANIFESTS)
    ready = containers(daemons)[0]["readinessProbe"]["exec"]["command"]
    assert cluster.run(shlex.join(ready)).returncode == 0
    assert cluster.run(shlex.join(ready), sick=True).returncode == 1
    shell, flag, script = containers(daemons)[0]["command"]
    assert (shell, flag) == ("sh", "-c")
    assert subprocess.run(["sh", "-n"], input=script, encoding="utf-8", check=False).returncode == 0
    words = containers(job)[0]["command"]
    assert words[0] == "accelctl"
    shown = run_cli(words[1], "--help", code=0).stdout
    assert all(word in shown for word in words if word.startswith("--"))


def test_a_yaml_reader_agrees() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the manifests are only read by the test itself")
    for block in MANIFESTS:
        assert yaml.safe_load(text(block)) == parsed(list(block.lines))


@pytest.mark.parametrize("broken", ["a:\n    b: 1", "a: 1\na: 2", "- a: 1\n b: 2", "a: {b: 1}", "\ta: 1", "a:\nb: 1"])
def test_the_reader_of_the_test_itself_is_strict(broken: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        parsed(broken.split("\n"))
