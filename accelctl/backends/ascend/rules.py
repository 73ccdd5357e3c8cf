"""What the Ascend management library answers when it cannot start, and what each answer may mean.

Codes: gpustack/runtime pydcmi. The two usual causes of -8005 in a container: vllm-project/vllm-ascend issue 2698 and
Project-HAMi/ascend-device-plugin issue 23; -8020: vllm-ascend issue 632, Ascend/cann-container-image issue 46.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import LogRule
from accelctl.abi.rules import RuleContext, rule
from accelctl.model.finding import Evidence, Finding

#: Ascend container documentation; Ascend/ascend-device-plugin.
CONTAINER = {
    "docker": "docker run --device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc -v /usr/local/dcmi:/usr/local/dcmi -v /usr/local/Ascend/driver:/usr/local/Ascend/driver "
    "IMAGE",
    "kubernetes": 'resources: {limits: {"huawei.com/Ascend910": 1}} with the Ascend device plugin (name by chip)',
}
LIBRARY_PREFIXES = ("libascend", "libacl", "libhccl", "libdcmi", "libge_runner")
#: The nodes that a container needs beside its davinciN (gpustack/runtime deployer/cdi/ascend.py).
_NEEDED = ("dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc")

_HELD = "the device is held by another container or program: only the first one can use it"
_LACKS = "the container lacks a privilege or a node that the driver wants"
#: Code -> meaning in the library's header, candidates in order of likelihood.
_CODES: dict[int, tuple[str, tuple[str, ...]]] = {
    -8002: ("operation not permitted", (_LACKS,)),
    -8005: ("inner error", (_HELD, _LACKS)),
    -8006: ("time out", ("the device or its firmware does not answer",)),
    -8007: ("invalid device id", ("the number is not one of this container's devices",)),
    -8008: ("device does not exist", ("the node of this device was not given to the container",)),
    -8009: ("ioctl failed", (_LACKS, _HELD)),
    -8012: ("not ready", ("the device is still starting",)),
    -8013: ("not supported in a container", ("this call only works on the host",)),
    -8015: ("reset failed", ("the device needs a cold boot",)),
    -8017: ("is upgrading", ("a firmware upgrade is running",)),
    -8020: ("resource occupied", (_HELD,)),
    -8255: ("not supported", ("this chip or driver does not offer it",)),
}
_STEPS = {
    _HELD: "on the host: npu-smi info (its process list), fuser -v /dev/davinci*; stop the other container",
    _LACKS: "give all of its nodes (below), mount the driver's folders; one try with --privileged tells this apart",
}

LOG_RULES = (
    LogRule(
        "ASCEND-DCMI",
        "error",
        "dcmi mod",
        r"^.*?\bdcmi mod(?:ule|el) initiali[sz]ed? failed\b.*?\bret is (?P<code>-\d+).*$",
        lambda match: _title(int(match["code"])),
        device=None,
        source="vllm-project/vllm-ascend issue 2698; Ascend/cann-container-image issue 46",
        certainty="possible",
        split=True,
    ),
)


def _title(code: int) -> str:
    meaning, causes = _CODES.get(code, ("a code without a public meaning", ()))
    words = "; ".join(f"{number}. {cause}" for number, cause in enumerate(causes, 1))
    return f"the management library (DCMI) did not start: {code} ({meaning})" + (
        f"; not certain why: {words}" if words else ""
    )


@rule("ASCEND-DCMI", needs="log")
def management(ctx: RuleContext) -> Iterator[Finding]:
    """Candidates in order, none of them certain; a node that is missing here moves its cause to the front."""
    for match in ctx.log_matches(LOG_RULES[0].literal, LOG_RULES[0].pattern):
        code = int(match["code"])
        causes = list(_CODES.get(code, ("", ()))[1])
        absent = _absent_nodes(ctx)
        if absent and _LACKS in causes:
            causes.sort(key=lambda cause: cause != _LACKS)
        steps = [_STEPS[cause] for cause in causes if cause in _STEPS]
        shown = (ctx.log_evidence(match), *(Evidence(path, "absent") for path in absent))
        needed = "nodes a container needs: " + " ".join(f"/{path}" for path in ("dev/davinciN", *_NEEDED))
        title = _title(code)
        yield Finding("ASCEND-DCMI", "error", title, None, shown, (*steps, needed), "possible")


def _absent_nodes(ctx: RuleContext) -> list[str]:
    given = any(device.chip == "ascend" and device.under("nodes") for device in ctx.report.devices)
    return [path for path in _NEEDED if not ctx.root.exists(path)] if given else []
