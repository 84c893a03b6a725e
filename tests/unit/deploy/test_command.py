"""scripts/testbed: what it accepts, which kernel it takes, what it tells the programs and the user."""

from __future__ import annotations

import dataclasses
import lzma
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.softroce import __main__ as command
from deploy.softroce import guest_memory, local, uml
from deploy.softroce import run as run_module
from deploy.softroce.__main__ import TESTBED_FAILED, dropped, explain, host_commands, main, make_parser, make_run
from deploy.softroce.errors import NoKernelError, TestbedError
from deploy.softroce.guest_memory import Place, find_place, first_tmpfs
from deploy.softroce.job import Job, Program
from deploy.softroce.kernel import find_kernel
from deploy.softroce.local import default_netdev, device_on
from deploy.softroce.run import Outcome, Run, execute, host_environment
from deploy.softroce.schedule import parse_change, steps
from deploy.softroce.uml import init_script, kernel_command
from deploy.softroce.wan import Host, Wan, plan
from fedrdma_fate.bench.wan.shaping import Policer, RateTrace
from tests.support.repository import ROOT


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Something that passes for a kernel until it is booted."""
    path = tmp_path / "linux"
    path.write_text("#!/bin/sh\necho 'Kernel panic: no guest here'\nexit 1\n")
    path.chmod(0o755)
    return path


def _run(kernel: Path, *arguments: str) -> Run:
    return make_run(make_parser().parse_args(["run", "--kernel", str(kernel), *arguments]))


# --- options ---


def test_the_options_become_the_wan(kernel: Path) -> None:
    options = ["--rate", "1gbit", "--rtt", "20ms", "--loss", "0.1%", "--buffer", "500kB", "--seed", "7"]
    run = _run(kernel, *options, "--virtual-time", "--memory", "1GiB", "--timeout", "9", "--", "true")
    assert run.wan == Wan(10**9, 10**10, 20_000_000, 0.001, 500_000, 4200, 7, exact=True)
    assert (run.memory_bytes, run.timeout, run.virtual_time) == (2**30, 9.0, True)


def test_a_nic_is_as_fast_as_somebody_says(kernel: Path) -> None:
    assert _run(kernel, "--rate", "1gbit", "--nic-rate", "2gbit", "--", "true").wan.nic_rate == 2 * 10**9


def test_a_delay_line_is_as_long_as_somebody_says(kernel: Path) -> None:
    assert _run(kernel, "--delay-packets", "1000", "--", "true").wan.delay_packets == 1000


def test_a_policer_and_the_way_back_are_what_somebody_says(kernel: Path) -> None:
    options = ["--rate", "1gbit", "--policer", "500mbit:100kB", "--back-rate", "20mbit", "--back-loss", "1%"]
    wan = _run(kernel, *options, "--", "true").wan
    assert (wan.policer, wan.back_rate, wan.back_loss) == (Policer(5 * 10**8, 100_000), 2 * 10**7, 0.01)


def test_a_trace_is_the_rate_and_its_highest_what_cards_go_by(kernel: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("0 1000000\n1 3000000\n2 repeat\n")
    wan = _run(kernel, "--rate-trace", str(path), "--", "true").wan
    assert wan.trace == RateTrace(((0, 10**6), (10**9, 3 * 10**6)), 2 * 10**9)
    assert (wan.rate, wan.nic_rate) == (3 * 10**6, 3 * 10**7)
    with pytest.raises(ValueError, match="give one of them"):
        _run(kernel, "--rate", "1mbit", "--rate-trace", str(path), "--", "true")


def test_cross_traffic_comes_from_a_host_behind_the_last_one_and_takes_its_time(kernel: Path) -> None:
    run = _run(kernel, "--rate", "1gbit", "--rtt", "20ms", "--cross", "2:1s:500ms", "--", "true")
    taking, sending = run_module._cross_programs(run)
    assert (taking.namespace, sending.namespace) == ("host1", "host2")
    # four times what is under way: the bandwidth-delay product and the buffer
    assert taking.command[-3:] == ("take", "10.77.0.2", "26000000")
    assert sending.command[-6:] == ("send", "10.77.0.2", "2", "1.000000000", "0.500000000", "26000000")
    assert taking.background
    assert sending.background
    assert [*run_module._cross_programs(_run(kernel, "--", "true"))] == []


def test_the_program_keeps_its_own_options(kernel: Path) -> None:
    run = _run(kernel, "--hosts", "3", "--", "program", "--rate", "fast", "-h")
    assert run.commands == (("program", "--rate", "fast", "-h"),) * 3


def test_hosts_may_run_different_programs() -> None:
    assert host_commands(3, ["all"], [(1, "one | two")]) == (("all",), ("bash", "-c", "one | two"), ("all",))
    assert host_commands(2, [], [(0, "alone")]) == (("bash", "-c", "alone"), ("true",))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "--speed", "1gbit", "--", "true"], "unrecognized arguments: --speed"),
        (["run", "--rate", "fast", "--", "true"], "'fast' is not a rate"),
        (["run", "--loss", "2", "--", "true"], "'2' is not a loss"),
        (["run", "--policer", "1gbit", "--", "true"], "'1gbit' is not RATE:BURST"),
        (["run", "--policer", "fast:1MB", "--", "true"], "'fast' is not a rate"),
        (["run", "--policer", "1gbit:much", "--", "true"], "'much' is not a size"),
        (["run", "--policer", "1gbit:0", "--", "true"], "a size cannot be zero"),
        (["run", "--policer", "1gbit:4kB", "--", "true"], "burst of 4000 bytes does not hold one packet"),
        (["run", "--rate-trace", "/nowhere", "--", "true"], "/nowhere: No such file"),
        (["run", "--rate-trace", "/dev/null", "--", "true"], "it holds no rate"),
        (["run", "--cross", "2:1s", "--", "true"], "'2:1s' is not FLOWS or FLOWS:ON:OFF"),
        (["run", "--hosts", "65", "--cross", "1", "--", "true"], "66 hosts"),
        (["run", "--host", "1:rate=fast", "--", "true"], "host 1: rate: 'fast' is not a rate"),
        (["run", "--host", "2:rate=1mbit", "--", "true"], "the link of host 2: there are hosts 0 to 1"),
        (["run", "--back-rate", "1mbit", "--", "true"], "give --rate as well"),
        (["run", "--back-loss", "100%", "--", "true"], "loses everything"),
        (["run", "--at", "soon", "--", "true"], "'soon' is not TIME:NAME=VALUE"),
        (["run", "--timeout", "0", "--", "true"], "seconds above zero"),
        (["run", "--timeout", "soon", "--", "true"], "seconds above zero"),
        (["run", "--on", "host0=true"], "is not HOST=COMMAND"),
        (["run", "--on", "0="], "is not HOST=COMMAND"),
        (["run"], "nothing to run"),
        (["run", "--on", "2=true"], "there are hosts 0 to 1"),
        (["run", "--on", "0=true", "--on", "0=false"], "given twice"),
        (["run", "--hosts", "1", "--", "true"], "1 hosts"),
        (["run", "--out", "a,b", "--", "true"], "comma"),
        (["walk"], "invalid choice: 'walk'"),
        ([], "required: COMMAND"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_boots(
    kernel: Path,
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDRDMA_TESTBED_KERNEL", str(kernel))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["host"], ["kernel"], ["build-kernel"]])
def test_every_command_explains_itself(arguments: list[str]) -> None:
    command_line = [str(ROOT / "scripts" / "testbed"), *arguments, "--help"]
    result = subprocess.run(command_line, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith("usage: scripts/testbed")
    assert "%%" not in result.stdout


# --- the kernel ---


def _packed(root: Path, name: str, content: bytes) -> None:
    folder = root.parent / "shared" / "testbed"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(lzma.compress(content))


def test_a_ready_kernel_is_unpacked_once(tmp_path: Path) -> None:
    root, cache = tmp_path / "main", tmp_path / "cache"
    _packed(root, "linux-uml-7.3.xz", b"stock")
    _packed(root, "linux-uml-7.3-nic.xz", b"nic")
    for flavour in ("nic", "stock"):
        kernel = find_kernel(flavour, environment={}, root=root, cache=cache)
        assert kernel.read_bytes() == flavour.encode()
        assert kernel.stat().st_mode & 0o111
    _packed(root, "linux-uml-7.3-nic.xz", b"other")
    assert find_kernel("nic", environment={}, root=root, cache=cache).read_bytes() == b"nic"


def test_the_environment_may_name_the_kernel_and_a_path_overrides_it(kernel: Path, tmp_path: Path) -> None:
    environment = {"FEDRDMA_TESTBED_KERNEL": str(kernel)}
    assert find_kernel("nic", environment=environment, root=tmp_path, cache=tmp_path) == kernel
    assert find_kernel(sys.executable, environment=environment) == Path(sys.executable).resolve()


def test_without_a_kernel_one_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError, match="no nic kernel") as caught:
        find_kernel("nic", environment={}, root=tmp_path / "main", cache=tmp_path)
    assert "scripts/testbed build-kernel" in caught.value.remedy


@pytest.mark.parametrize("content", [None, "no program"])
def test_a_kernel_that_is_no_program_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "linux"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoKernelError, match="is no program"):
        find_kernel(str(path))


def test_a_kernel_that_stops_at_once_shows_its_last_words(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--kernel", str(kernel), "--", "true"]) == TESTBED_FAILED
    error = capsys.readouterr().err
    assert "went down before its programs ended" in error
    assert "Kernel panic: no guest here" in error


def test_a_kernel_for_another_machine_is_an_error(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # as where there is room: a shell that mounts a tmpfs first would complain in its own words
    monkeypatch.setattr(uml, "find_place", lambda _: Place((), {}))
    kernel.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 57)
    assert main(["run", "--kernel", str(kernel), "--", "true"]) == TESTBED_FAILED
    assert "does not start" in capsys.readouterr().err


def test_missing_tools_are_named_with_their_packages(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "missing_tools", lambda: {"tc": "iproute2", "rdma": "iproute2"})
    with pytest.raises(TestbedError, match="tc, rdma") as caught:
        execute(_run(kernel, "--", "true"), command.show_line)
    assert caught.value.remedy == "apt-get install iproute2"


# --- what the guest gets ---


def test_in_virtual_time_programs_order_sets_alike_in_every_boot_unless_the_caller_says_otherwise(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seed(*options: str) -> str | None:
        return host_environment(Host(1), _run(kernel, *options, "--", "true"), tmp_path).get("PYTHONHASHSEED")

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert (seed("--virtual-time"), seed()) == ("0", None)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert seed("--virtual-time") == "7"


def test_a_program_is_told_who_it_is(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLERS", "own")
    environment = host_environment(Host(1), _run(kernel, "--", "true"), tmp_path)
    told = {name: value for name, value in environment.items() if name.startswith("TESTBED_")}
    assert told == {
        "TESTBED_HOST": "1",
        "TESTBED_HOSTS": "10.77.0.1,10.77.0.2",
        "TESTBED_ADDRESS": "10.77.0.2",
        "TESTBED_DEVICE": "rxe1",
        "TESTBED_NETDEV": "eth0",
        "TESTBED_RATE": "",
        "TESTBED_RTT": "0",
        "TESTBED_OUT": str(tmp_path),
        "TESTBED_PERIOD": "0.000000000",
        "TESTBED_VIRTUAL_TIME": "0",
    }
    assert environment["CALLERS"] == "own"


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    programs = (Program("host0", ("echo", "a b"), {"A": "ä"}), Program("host1", ("true",), {}))
    wan = Wan(rate=10**9, rtt_ns=10)
    network = dataclasses.replace(plan(wan, 2), steps=steps(wan, 2, [parse_change("1s:loss=1%")]))
    job = Job(network, programs, "/somewhere", real_time=True, sample_seconds=0.001)
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    traced = dataclasses.replace(wan, rate=2000, trace=RateTrace(((0, 2000), (1, 1000)), 7), back_rate=5000)
    job = dataclasses.replace(job, plan=plan(traced, 2))
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


def test_only_virtual_time_is_asked_of_the_kernel_when_wanted(tmp_path: Path) -> None:
    lines = {
        virtual: kernel_command(Path("linux"), tmp_path, memory_bytes=2**31, virtual_time=virtual, channel=5)
        for virtual in (False, True)
    }
    assert set(lines[True]) - set(lines[False]) == {"time-travel=inf-cpu"}
    assert {"mem=2048M", "con1=null,fd:5", "ro"} <= set(lines[False])


def test_the_kernel_finds_its_first_process_in_a_directory_with_spaces_and_its_socket_by_a_short_path() -> None:
    directory = Path("/a b/" + "deep/" * 30)
    line = kernel_command(Path("linux"), directory, memory_bytes=2**31, virtual_time=False, channel=5)
    assert f'init="{directory}/init"' in line
    assert [each for each in line if " " in each] == [f'init="{directory}/init"']
    assert "uml_dir=." in line


# --- where the guest's memory lies ---

MOUNTS = """\
/dev/root / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw,size=65536k 0 0
tmpfs /my\\040files tmpfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/other /tmp/disk ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("environment", "found"),
    [({}, "/dev/shm"), ({"TMPDIR": "/tmp"}, "/tmp"), ({"TMP": "/var"}, "/dev/shm"), ({"TMPDIR": ""}, "/dev/shm")],
)
def test_a_guest_s_memory_lies_in_the_first_tmpfs_of_those_that_its_kernel_tries(
    environment: dict[str, str], found: str
) -> None:
    assert first_tmpfs(environment, MOUNTS) == Path(found)


def test_a_tmpfs_is_found_by_its_mount_also_with_a_space_and_a_disk_in_it_is_none(tmp_path: Path) -> None:
    inner, disk = tmp_path / "my files" / "inner", tmp_path / "my files" / "disk"
    inner.mkdir(parents=True)
    disk.mkdir()
    escaped = str(tmp_path / "my files").replace(" ", "\\040")
    mounts = f"tmpfs {escaped} tmpfs rw 0 0\n/dev/x {escaped}/disk ext4 rw 0 0\n"
    assert first_tmpfs({"TMPDIR": str(inner)}, mounts) == inner
    assert first_tmpfs({"TMPDIR": str(disk)}, mounts) is None


def test_a_guest_that_has_room_is_started_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_memory, "first_tmpfs", lambda *_: Path("/dev/shm"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**31))
    assert find_place(2**31, {"TMPDIR": "/x"}) == Place((), {"TMPDIR": "/x"})


def test_a_guest_without_room_gets_a_tmpfs_of_its_own_where_that_can_be_mounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def works(command: list[str]) -> bool:
        tried.append(" ".join(command[:3]))
        return "--user" in command

    monkeypatch.setattr(guest_memory, "first_tmpfs", lambda *_: Path("/tmp"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=64 * 2**20))
    monkeypatch.setattr(guest_memory, "_works", works)
    place = find_place(2**31, {"TMPDIR": "/tmp", "HOME": "/x"})
    assert tried == ["unshare --mount sh", "unshare --user --map-root-user"]
    assert place.prefix[-2:] == (str(2**31), "/dev/shm")
    # the kernel must not find the small one again
    assert place.environment == {"HOME": "/x"}


def test_a_guest_without_room_anywhere_is_not_booted_and_the_user_told_how_much_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guest_memory, "first_tmpfs", lambda *_: Path("/dev/shm"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=64 * 2**20))
    monkeypatch.setattr(guest_memory, "_works", lambda _: False)
    with pytest.raises(TestbedError, match="/dev/shm has 64 MiB free") as error:
        find_place(2**31)
    assert "--shm-size=2048m" in error.value.remedy


def test_the_first_process_survives_odd_directory_names() -> None:
    script = init_script(Path("/a b/job.json"), Path("/out 'x'"))
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert """'/mnt/root/out '"'"'x'"'"''""" in script


# --- what the user gets ---


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome({0: 0, 1: 0}, timed_out=False), 0),
        (Outcome({1: 3, 0: 0}, timed_out=False), 3),
        (Outcome({1: 3, 0: 4}, timed_out=False), 4),
        (Outcome({1: 3}, timed_out=True), 124),
    ],
)
def test_the_first_failure_by_host_is_the_status(outcome: Outcome, status: int) -> None:
    assert outcome.status == status


def test_a_run_that_went_wrong_says_what_did(kernel: Path) -> None:
    run = _run(kernel, "--hosts", "3", "--timeout", "5", "--", "true")
    assert list(explain(run, Outcome({1: 3}, timed_out=True))) == [
        "stopped after 5 s; still running on host 0, 2",
        "host 1 ended with status 3",
    ]
    assert list(explain(run, Outcome({0: 0, 1: 0, 2: 0}, timed_out=False))) == []


def test_a_line_keeps_its_stream_and_gets_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    command.show_line(0, "stdout", "whole\n")
    command.show_line(1, "stdout", "cut")
    command.show_line(1, "stderr", "error\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("[0] whole\n[1] cut\n", "[1] error\n")


# --- a device on this machine ---


def test_a_kernel_without_the_module_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(TestbedError, match=r"has no rdma_rxe, and there is no modprobe") as caught:
        local.load_module(tmp_path / "absent")
    assert "scripts/testbed run" in caught.value.remedy


def test_what_modprobe_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modprobe = tmp_path / "modprobe"
    modprobe.write_text("#!/bin/sh\necho 'modprobe: FATAL: Module rdma_rxe not found' >&2\nexit 1\n")
    modprobe.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(modprobe))
    with pytest.raises(TestbedError, match="Module rdma_rxe not found"):
        local.load_module(tmp_path / "absent")


def test_a_module_that_is_there_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    local.load_module(tmp_path)


def test_only_root_sets_up_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match="by root only"):
        local.set_up(None, "rxe0")


def test_the_default_interface_is_that_of_the_default_route() -> None:
    assert default_netdev("default via 10.0.0.1 dev ens3 proto dhcp\ndefault dev wlan0\n") == "ens3"
    with pytest.raises(TestbedError, match="no default route"):
        default_netdev("")


def test_a_device_that_is_on_the_interface_is_found() -> None:
    links = "link mlx5_0/1 state DOWN physical_state DISABLED\nlink rxe7/1 state ACTIVE netdev ens3 \n"
    assert device_on(links, "ens3") == "rxe7"
    assert device_on(links, "ens4") is None


def test_packets_that_were_dropped_are_told_with_the_host_and_none_are_not_mentioned() -> None:
    outcome = Outcome({0: 0, 1: 0}, False, lost={0: 12, 1: 3}, overflowed={0: 0, 1: 7}, policed={0: 5, 1: 4})
    assert list(dropped(outcome)) == [
        "the WAN lost 15 packets (12 host 0, 3 host 1)",
        "buffers overflowed by 7 packets (7 host 1)",
        "policers dropped 9 packets (5 host 0, 4 host 1)",
    ]
    assert list(dropped(Outcome({0: 0}, False, lost={0: 0}, overflowed={0: 0}))) == []


def test_how_full_buffers_got_is_told_where_they_were_watched() -> None:
    outcome = Outcome({0: 0, 1: 0}, False, queues={1: [(0.05, 9), (0.1, 3_801_320)], 0: []})
    assert list(dropped(outcome)) == [
        "buffers held at most so many bytes: 0 in front of host 0, 3801320 in front of host 1"
    ]


def test_buffers_can_be_watched_only_where_there_is_a_bottleneck(kernel: Path) -> None:
    parse = make_parser().parse_args
    common = ["run", "--kernel", str(kernel), "--watch-queues"]
    assert make_run(parse([*common, "--rate", "1gbit", "--", "true"])).watch_queues
    with pytest.raises(ValueError, match="without a rate there is no bottleneck"):
        make_run(parse([*common, "--", "true"]))
