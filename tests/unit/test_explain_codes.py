"""accelctl explain CODE: what is found under a word, what is said about it, and what is said where nothing is found."""

from __future__ import annotations

import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.codes import STACKS, Code, table
from accelctl.accept.codes import Answer, answer, listed, look, may_be, refine
from accelctl.errors import ABSENCES, KINDS, UsageError
from accelctl.exits import EXIT_MEANINGS
from accelctl.render.codes import LOST, RETRY, WHEN, document, text
from accelctl.render.layout import cells
from accelctl.render.term import Term
from tests.helpers import run_cli

PIPE = Term(False, None, None, True)


def found(query: str, log: str | None = None) -> Answer:
    result = look(query, log)
    assert isinstance(result, Answer)
    return result


def drawn(query: str, log: str | None = None) -> str:
    return text(found(query, log), PIPE)


def flat(query: str) -> str:
    return " ".join(drawn(query).split())


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("cuda:700", ["cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"]),
        ("cuda_driver:700", ["CUDA_ERROR_ILLEGAL_ADDRESS"]),
        ("cuda_runtime:700", ["cudaErrorIllegalAddress"]),
        ("cudaErrorIllegalAddress", ["cudaErrorIllegalAddress"]),
        ("CUDAERRORILLEGALADDRESS", ["cudaErrorIllegalAddress"]),
        ("cuda:916", ["CUDA_ERROR_KEY_ROTATION"]),
        ("HIP:700", ["hipErrorIllegalAddress"]),
        ("hipErrorMemoryAllocation", ["hipErrorOutOfMemory"]),
        ("acl:507018", ["ACL_ERROR_RT_AICPU_EXCEPTION"]),
        ("507018", ["ACL_ERROR_RT_AICPU_EXCEPTION"]),
        ("nvml:15", ["NVML_ERROR_GPU_IS_LOST"]),
        ("xid 79", ["ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"]),
        ("Xid: 79", ["ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"]),
        ("nv:0x51", ["NV_ERR_NO_MEMORY"]),
        ("nv:81", ["NV_ERR_NO_MEMORY"]),
        ("cl:-5", ["CL_OUT_OF_RESOURCES"]),
        ("CL_OUT_OF_RESOURCES", ["CL_OUT_OF_RESOURCES"]),
        ("cl:0xFFFFFFFB", ["CL_OUT_OF_RESOURCES"]),
        ("ze:0x70000001", ["ZE_RESULT_ERROR_DEVICE_LOST"]),
        ("ze:device_lost", ["ZE_RESULT_ERROR_DEVICE_LOST"]),
        ("cnrt:100100", ["cnrtErrorNoMem"]),
        ("cndrv:100131", ["CN_INVOKE_ERROR_MEMORY_ILLEGAL_ADDRESS"]),
        ("musa:700", ["musaErrorIllegalAddress"]),
        ("xpu:-705", ["XPUERR_NOMEM"]),
        ("nccl:6", ["ncclRemoteError"]),
        ("hccl:21", ["HCCL_E_REMOTE"]),
        ("hsa:0x1016", ["HSA_STATUS_ERROR_EXCEPTION"]),
        ("errno ENOSPC", ["ENOSPC"]),
        ("ENOSPC", ["ENOSPC"]),
        ("errno:-28", ["ENOSPC"]),
        ("-5", ["CL_OUT_OF_RESOURCES", "EIO"]),
    ],
)
def test_codes_are_found_as_people_write_them(query: str, names: list[str]) -> None:
    assert [code.name for code in found(query).codes] == names


def test_every_name_and_every_address_leads_back_to_its_code() -> None:
    for stack in STACKS:
        for name, code in table(stack).by_name.items():
            assert code in answer(name).codes
            assert code in answer(f"{stack}:{code.number}").codes
            assert code in answer(code.address).codes


def test_names_come_before_numbers_and_pages_before_names() -> None:
    assert str(look("HANG-READ")).startswith("# HANG-READ")
    assert str(look("no driver")).startswith("# no_driver")
    assert found("timeout").kind == "timeout"  # though names of stacks end so
    assert not set(KINDS) & set(ABSENCES)
    assert not {name for stack in STACKS for name in table(stack).by_name} & {*KINDS, *ABSENCES}


def test_a_bare_number_is_listed_for_every_stack() -> None:
    shown = drawn("705")
    assert shown.startswith("705: 5 codes of 5 stacks, 2 different things\n")
    assert "xpu:705   out_of_memory  XPUERR_NOMEM" in shown
    assert "cuda:705  invalid_state  cudaErrorPeerAccessNotEnabled" in shown
    assert "accelctl explain cuda:705" in shown
    assert "of kind illegal_access in all" in drawn("700")


def test_async_codes_blame_an_earlier_call() -> None:
    shown = flat("cuda:700")
    assert "an earlier call is to blame" in shown
    assert "cudaMemcpyAsync" in shown
    assert "Seen at cudaDeviceSynchronize" in shown
    assert "CUDA_LAUNCH_BLOCKING=1" in shown
    assert "earlier call" not in flat("cuda:101").partition("About CUDA")[0]
    assert "Seen at" not in flat("cuda:101")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("cuda:700", "Lost the process"),
        ("hip:700", "Lost the process"),
        ("acl:507015", "Lost by default only this task"),
        ("cl:-5", "Lost left to the implementation"),
        ("ze:0x70000001", "Lost the device, until it is reset"),
        ("cuda:2", "Lost nothing"),
        ("cuda:901", "Lost the running capture"),
        ("nccl:6", "Lost the communicator"),
    ],
)
def test_what_is_lost_differs_more_than_the_kind_does(query: str, words: str) -> None:
    assert words in flat(query)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("acl:107045", "calls 107045 SUB_ACLGRAPH_IS_CAPTURING"),
        ("acl:107046", "has this name at 107045"),
        ("hip:1054", "hipErrorTbd"),
        ("hip:1055", "1054 in ROCm 6.3"),
        ("nccl:8", "ncclNumResults"),
        ("nccl:9", "8 in older headers"),
    ],
)
def test_traps_of_versions_are_told(query: str, words: str) -> None:
    assert words in flat(query).partition("Version")[2]


def test_a_wait_that_ends_is_told_where_the_stack_has_no_code_for_it() -> None:
    assert "timeout" in may_be(found("ze:1").codes[0])
    assert found("acl:507046").codes[0].kind == "timeout"
    assert "timeout" in flat("ze:1")


def test_a_coarse_code_says_what_else_it_may_be() -> None:
    shown = flat("cl:-5")
    assert "it may stand for illegal_access or launch_config" in shown
    assert "Kernel reads or writes outside its buffers. [illegal_access]" in shown


LOG = """[INFO] RUNTIME(1): page fault handler is installed
[ERROR] RUNTIME(1): The DDR address of the MTE instruction is out of range
[ERROR] RUNTIME(1): something about DECCA
"""


@pytest.mark.parametrize(
    ("query", "log", "kind"),
    [
        ("acl:507015", LOG, "illegal_access"),
        ("acl:507035", "[ERROR] the address is Misaligned\n", "misaligned_access"),
        ("acl:507015", "[ERROR] HBM: ECC error\n", "ecc_uncorrectable"),
        ("acl:507015", "[INFO] page fault\n[ERROR] nothing of use, DECCA\n", ""),
        ("acl:507013", "[ERROR] sdma task failed, cqe status=0x4, sq 1\n", "illegal_access"),
        ("acl:507013", "[ERROR] SDMA error, errorCode:8\n", "ecc_uncorrectable"),
        ("acl:507013", "[ERROR] sdma status 12\n", "numeric"),
        ("acl:507013", "[ERROR] sdma status 99\n", ""),
        ("acl:507013", "[ERROR] address out of range\n", ""),
        ("acl:107001", LOG, ""),
    ],
)
def test_a_log_refines_a_coarse_code(query: str, log: str, kind: str) -> None:
    refined = refine(found(query).codes, log)
    assert refined.kind == kind
    assert bool(refined.line) is bool(kind)


def test_a_log_is_read_from_a_file_or_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plog.txt"
    file.write_bytes(LOG.encode() + b"\xff\x00 bytes\n")
    shown = " ".join(drawn("acl:507015", str(file)).split())
    assert "here it is illegal_access" in shown
    assert "Log [ERROR] RUNTIME(1): The DDR address" in shown
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"nothing\n")))
    assert "the log holds nothing that says more" in " ".join(drawn("acl:507015", "-").split())
    for query, log in (("cuda:700", str(file)), ("HANG-READ", str(file)), ("acl:507015", str(tmp_path))):
        with pytest.raises(UsageError):
            look(query, log)
    with pytest.raises(UsageError, match="no-such-file"):
        look("acl:507015", "no-such-file")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("acl:107999", ["107000 to 107999 are about arguments", "ACL_ERROR_RT_SUB_ACLGRAPH_IS_CAPTURING"]),
        ("cuda:750", ["700 to 799 are about kernels", "721"]),
        ("ze:0x78000099", ["0x78000001 to 0x7800ffff are about arguments"]),
        ("xpu:-12", ["1 to 699 are about what errno says"]),
        ("cl:5", ["-5 CL_OUT_OF_RESOURCES"]),
        ("507999", ["no stack has this number", "in acl, 507000 to 507999"]),
        ("cudaErorIllegalAddress", ["did you mean cudaErrorIllegalAddress"]),
        ("cuda:cudaErrorIlegalAdress", ["did you mean cudaErrorIllegalAddress"]),
        ("cuad:700", ["no stack is called 'cuad'", "did you mean cuda"]),
        ("illegal_acess", ["did you mean illegal_access"]),
        ("CL_OUT", ["did you mean CL_OUT_OF_"]),
        ("HANG-RED", ["did you mean HANG-READ"]),
        ("cuda:", ["nothing to explain"]),
        ("", ["nothing to explain"]),
    ],
)
def test_what_is_unknown_is_answered_with_the_nearest(query: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        look(query)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("stack", STACKS)
def test_every_range_holds_codes_and_no_code_is_in_two(stack: str) -> None:
    ranges = table(stack).head.get("ranges", ())
    numbers = table(stack).by_number
    for low, high, words in ranges:
        assert any(low <= number <= high for number in numbers) or "errno:" in words
    assert all(sum(low <= number <= high for low, high, _ in ranges) <= 1 for number in numbers)


@given(st.text() | st.from_regex(r"(cuda|cl|0x|xid|:|-)*[\s\S]{0,9}"))
def test_arbitrary_text_is_explained_or_refused_in_one_line(query: str) -> None:
    try:
        result = look(query)
    except UsageError:
        pass
    else:
        shown = result if isinstance(result, str) else text(result, PIPE)
        assert shown.endswith("\n")


@given(st.integers())
def test_any_number_is_explained_or_refused(number: int) -> None:
    for query in (str(number), f"cl:{number}", hex(number)):
        try:
            assert found(query).codes
        except UsageError:
            pass


@given(st.text(), st.sampled_from([507013, 507015, 507035, 507049]))
def test_arbitrary_logs_refine_to_kinds_or_to_nothing(log: str, number: int) -> None:
    assert refine(answer(f"acl:{number}").codes, log).kind in (*KINDS, "")


def test_every_code_and_kind_is_drawn_within_the_width_of_a_terminal() -> None:
    term = Term(True, 80, "standard", False)
    narrow = Term(True, 80, None, True)
    for stack in STACKS:
        for code in table(stack).by_number.values():
            lines = text(Answer("x", (code,)), narrow).splitlines()
            assert max(map(cells, lines)) <= 80, code
    for kind in KINDS:
        assert text(Answer(kind, (), kind), term).isascii()
        assert max(map(cells, text(Answer(kind, (), kind), narrow).splitlines())) <= 80


def test_words_exist_for_every_value_of_the_table() -> None:
    codes: list[Code] = [code for stack in STACKS for code in table(stack).by_number.values()]
    assert {code.when for code in codes} == set(WHEN)
    assert {code.sticky for code in codes} == set(LOST)
    assert {kind.retryable for kind in KINDS.values()} <= set(RETRY)


def test_a_kind_is_explained_with_its_codes() -> None:
    shown = flat("out_of_memory")
    for words in ("after something is freed", "Exit 1: ", KINDS["out_of_memory"].next_step, "207001 ACL_ERROR_RT"):
        assert words in shown
    assert all(EXIT_MEANINGS[kind.exit_code] for kind in KINDS.values())
    assert found("Out of memory").kind == "out_of_memory"


def test_documents_are_complete_json() -> None:
    one = document(found("cl:-5"))
    assert one["schema"] == "accelctl.explain/1"
    assert one["ambiguous"] is False
    code = one["codes"][0]
    assert (code["code"], code["kind"], code["number"]) == ("cl:-5", "out_of_resources", -5)
    assert "illegal_access" in code["may_be"]
    assert code["blame"]["seen_at"].startswith("clFinish")
    assert "kernel_out_of_bounds" in [mistake["id"] for mistake in code["mistakes"]]
    assert document(found("705"))["ambiguous"] is True
    kind = document(found("device_lost"))["kind"]
    assert kind["exit_code"] == 7
    assert "ze:0x70000001" in kind["codes"]["level_zero"]
    for query in ("705", "xid:79", "timeout"):
        assert json.loads(json.dumps(document(found(query)), allow_nan=False))["id"] == query


def test_the_list_has_everything_once() -> None:
    ids = [entry.id for entry in listed()]
    assert len(ids) == len(set(ids))
    assert {"HANG-READ", "asleep", "device_lost", "cuda:CODE", "hsa:CODE"} <= set(ids)


def test_command() -> None:
    assert run_cli("explain", "cuda:700", code=0).stdout.startswith("cuda:700  cudaErrorIllegalAddress")
    assert run_cli("explain", "errno", "ENOSPC", code=0).stdout.startswith("errno:28  ENOSPC")
    assert run_cli("explain", "cl:-5", code=0).stdout.startswith("cl:-5  CL_OUT_OF_RESOURCES")
    assert "CL_OUT_OF_RESOURCES" in run_cli("explain", "--", "-5", code=0).stdout
    assert "here it is illegal_access" in run_cli("explain", "acl:507015", "--log", "-", stdin=LOG, code=0).stdout
    assert json.loads(run_cli("explain", "705", "--json", code=0).stdout)["ambiguous"] is True
    done = run_cli("explain", "acl:107999", code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 2
