"""scripts/fresh: what it tries and in which order, how it makes and enters a bare root, what it says is missing."""

from __future__ import annotations

import configparser
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.lib import fresh, fresh_root
from scripts.lib.console import CommandError
from scripts.lib.debian import PackageUnavailableError
from scripts.lib.fresh import NO_ROOT, USERS, Result, Try, findings, main, parse, plan, remedies, root_at, table, told
from scripts.lib.fresh_root import (
    NoRootError,
    apt_settings,
    apt_sources,
    base_command,
    check_machine,
    configure,
    enter_command,
    find_mmdebstrap,
    local_links,
    passed_on,
)

MIRROR = "http://mirror.example.test/debian/"
DEBIAN = f"Debian\tDebian\tbookworm\t{MIRROR}\tmain\n"


# --- what is tried ---


def test_without_options_both_commands_run_as_root_first_then_as_an_ordinary_user() -> None:
    tries = [(each.user.kind, *each.command) for each in plan(None, None, ["--fast"])]
    assert tries == [
        ("root", "scripts/demo"),
        ("root", "scripts/test", "--fast"),
        ("ordinary", "scripts/demo"),
        ("ordinary", "scripts/test", "--fast"),
    ]


def test_one_command_and_one_user_can_be_chosen_and_the_rest_goes_to_the_tests() -> None:
    options = parse(["--only", "test", "--user", "ordinary", "--", "--only", "unit", "--", "-k", "trace"])
    (only,) = plan(options.only, options.user, options.test_arguments)
    assert only == Try(USERS["ordinary"], ("scripts/test", "--only", "unit", "--", "-k", "trace"))
    assert only.name == "ordinary-test"


def test_every_clone_lies_in_a_path_with_a_space_and_an_ordinary_user_has_no_administrator_s_programs() -> None:
    assert all(" " in user.clone for user in USERS.values())
    assert "sbin" not in USERS["ordinary"].path


# --- making a root ---


def test_the_root_comes_from_the_mirror_and_the_suites_that_the_machine_uses() -> None:
    security = "Debian\tDebian-Security\tbookworm-security\thttp://mirror.example.test/security/\tmain\n"
    other = "Somebody\tDebian\tbookworm\thttp://other.example.test/\tmain\n"
    assert apt_sources(DEBIAN + other + security + DEBIAN) == [
        f"deb {MIRROR} bookworm main",
        "deb http://mirror.example.test/security/ bookworm-security main",
    ]


def test_on_another_release_of_debian_its_mirror_is_asked_for_the_right_one() -> None:
    assert apt_sources(DEBIAN.replace("bookworm", "trixie")) == [f"deb {MIRROR} bookworm main"]


@pytest.mark.parametrize("targets", ["", "Ubuntu\tUbuntu\tnoble\thttp://mirror.example.test/ubuntu/\tmain\n"])
def test_without_a_mirror_of_debian_there_is_no_root(targets: str) -> None:
    with pytest.raises(NoRootError, match="no mirror of Debian"):
        apt_sources(targets)


def test_proxies_of_apt_are_handed_on() -> None:
    dump = 'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://p.example.test:3";\nAcquire::Retries "0";\n'
    (setting,) = apt_settings(dump)
    command = base_command(Path("/x/mmdebstrap"), Path("/y/base.tar"), [setting])
    assert '--aptopt=Acquire::http::Proxy "http://p.example.test:3"' in command
    assert "--include=git,python3" in command
    assert command[-3:] == ["bookworm", "/y/base.tar", "-"]


def test_what_makes_a_root_is_unpacked_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/mmdebstrap")
    assert find_mmdebstrap(tmp_path) == Path("/usr/bin/mmdebstrap")
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("scripts.lib.debian.fetch", lambda *_: None)
    assert find_mmdebstrap(tmp_path) == tmp_path / "root/usr/bin/mmdebstrap"


def test_what_makes_a_root_and_cannot_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PackageUnavailableError("apt-get download failed")

    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("scripts.lib.debian.fetch", refuse)
    with pytest.raises(NoRootError, match="no mmdebstrap: apt-get download failed") as error:
        find_mmdebstrap(tmp_path)
    assert "apt-get install mmdebstrap" in error.value.remedy


@pytest.mark.parametrize(
    ("uid", "missing", "status", "words"),
    [
        (1000, None, 0, "only root"),
        (0, "unshare", 0, "missing on this machine: unshare"),
        (0, None, 1, "lets nobody mount in a namespace of their own: refused"),
    ],
)
def test_a_machine_where_no_root_can_be_made_says_exactly_why(
    uid: int, missing: str | None, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == missing else f"/usr/bin/{tool}")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], status, b"", b"refused\n"))
    with pytest.raises(NoRootError, match=words):
        check_machine()


def test_a_root_that_cannot_be_made_ends_with_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main([]) == NO_ROOT
    assert "sudo scripts/fresh" in capsys.readouterr().err


# --- the machine's package index ---


def test_the_root_s_pip_has_the_machine_s_settings_and_certificates_where_debian_does_not_write(
    tmp_path: Path,
) -> None:
    root, certificate = tmp_path / "root", tmp_path / "ca.pem"
    (root / "etc").mkdir(parents=True)
    certificate.write_text("trust")
    environment = {"SSL_CERT_FILE": str(certificate)}
    configure(root, {"index-url": "http://i.example.test/a%20b", "cert": str(certificate)}, environment)
    read = configparser.ConfigParser(interpolation=None)
    read.read(root / "etc/pip.conf")
    assert read["global"]["index-url"] == "http://i.example.test/a%20b"
    place = read["global"]["cert"]
    assert (root / place.lstrip("/")).read_text() == "trust"
    assert not place.startswith("/etc/ssl")
    assert passed_on(environment) == {"SSL_CERT_FILE": place}


def test_only_variables_that_say_where_packages_come_from_are_handed_on() -> None:
    environment = {
        "UV_DEFAULT_INDEX": "http://i.example.test",
        "https_proxy": "http://p.example.test",
        "NO_PROXY": "localhost",
        "UV_CACHE_DIR": "/home/me/.cache",
        "PATH": "/opt/bin",
        "PYTHONPATH": "/mine",
        "TMPDIR": "/mine",
    }
    assert set(passed_on(environment)) == {"UV_DEFAULT_INDEX", "https_proxy", "NO_PROXY"}


def test_directories_where_pip_finds_packages_are_shown_in_the_root_if_they_are_there(tmp_path: Path) -> None:
    links = f"{tmp_path} /nowhere/at/all http://i.example.test/links"
    assert local_links({"find-links": links}) == [tmp_path]


# --- entering it ---


def test_a_command_in_the_root_ends_with_its_namespaces_and_gets_no_other_environment() -> None:
    command = enter_command(
        Path("/r"),
        "tester",
        "/home/tester/my work",
        ["scripts/test", "--fast"],
        shm_bytes=64,
        shown={Path("/a b/shared"): "/home/tester/my work/shared"},
        environment={"HOME": "/home/tester"},
    )
    assert {"--mount", "--pid", "--kill-child"} <= set(command)
    script = command.index("sh") + 1
    assert command[script + 1 : script + 5] == ["/r", "tester", "/home/tester/my work", "64"]
    after = command[script + 5 :]
    assert after == [
        *("/a b/shared", "/home/tester/my work/shared", "--"),
        *("env", "-i", "HOME=/home/tester", "scripts/test", "--fast"),
    ]
    checked = subprocess.run(["sh", "-n", command[script]], capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Roots that were made, of nothing."""
    made: list[Path] = []

    def unpack(_: Path, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / fresh_root.MARK).touch()
        made.append(root)

    monkeypatch.setattr(fresh_root, "unpack", unpack)
    monkeypatch.setattr(fresh_root, "make_base", lambda _: None)
    return made


def test_a_root_is_removed_also_when_what_was_tried_in_it_fails(tmp_path: Path, unpacked: list[Path]) -> None:
    def fail() -> None:
        with root_at(tmp_path / "root", keep=False, reuse=False) as root:
            assert root.is_dir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert unpacked == [tmp_path / "root"]
    assert not (tmp_path / "root").exists()


def test_a_root_that_was_kept_is_used_again_as_it_is(tmp_path: Path, unpacked: list[Path]) -> None:
    for _ in range(2):
        with root_at(tmp_path / "root", keep=True, reuse=False) as root:
            assert root == tmp_path / "root"
    assert unpacked == [tmp_path / "root"]


@pytest.mark.usefixtures("unpacked")
def test_a_directory_with_somebody_s_files_is_never_taken_for_a_root(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NoRootError, match="not empty"), root_at(tmp_path, keep=False, reuse=False):
        pass
    fresh_root.remove(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_an_unfinished_root_has_its_mark_from_the_start_and_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base.tar"
    base.write_bytes(b"no archive")
    monkeypatch.setattr(fresh, "BASE", base)
    with pytest.raises(NoRootError, match="cannot be unpacked"), root_at(tmp_path / "r", keep=False, reuse=True):
        pass
    assert not (tmp_path / "r").exists()


# --- what it says ---

LOG = """\
==> virtual environment in .venv
note: no iproute2 (only root installs it); scripts/testbed and the tests in it are left out
  Run as root:  apt-get update && apt-get install -y iproute2
\x1b[31mFAILED\x1b[0m tests/unit/test_a.py::test_b - assert 1 == 2
SKIPPED [3] tests/nic/conftest.py:18: no testbed: needs the Debian packages iproute2
note: no iproute2 (only root installs it); scripts/testbed and the tests in it are left out
all is well
"""


def test_lines_of_a_log_that_say_what_is_missing_are_told_once() -> None:
    assert told(LOG) == [
        "note: no iproute2 (only root installs it); scripts/testbed and the tests in it are left out",
        "Run as root:  apt-get update && apt-get install -y iproute2",
        "FAILED tests/unit/test_a.py::test_b - assert 1 == 2",
        "SKIPPED [3] tests/nic/conftest.py:18: no testbed: needs the Debian packages iproute2",
    ]


def test_what_an_administrator_is_asked_to_run_is_found_in_the_log() -> None:
    assert remedies(LOG) == ["apt-get update && apt-get install -y iproute2"]


def _result(status: int, lines: tuple[str, ...] = ()) -> Result:
    return Result(Try(USERS["root"], ("scripts/demo",)), status, 61.4, lines, (), Path("/logs/root-demo.log"))


def test_the_table_has_every_try_with_its_result_and_log() -> None:
    assert table([_result(0), _result(1)]).splitlines() == [
        "user  command       result      took  log",
        "root  scripts/demo  well        61 s  /logs/root-demo.log",
        "root  scripts/demo  failed (1)  61 s  /logs/root-demo.log",
    ]


def test_a_try_without_findings_says_so_and_one_with_very_many_is_cut() -> None:
    assert findings(_result(0)) == "root, scripts/demo: nothing was missing"
    shown = findings(_result(1, tuple(f"error: {number}" for number in range(50))))
    assert "and 10 more lines" in shown
    assert "error: 39" in shown
    assert "error: 40" not in shown


class Told(fresh.Machine):
    """A machine where nothing runs, but scripts/setup says what it would say."""

    def __init__(self, logs: list[str], directory: Path) -> None:
        self.logs = logs
        self.directory = directory
        self.as_root: list[str] = []

    def attempt(self, tried: Try) -> Result:
        log = self.directory / "log"
        log.write_text(self.logs.pop(0))
        lines = tuple(told(log.read_text()))
        return Result(tried, int(any(line.startswith("error") for line in lines)), 1.0, lines, (), log)

    def _enter(self, user: fresh.User, command: object, log: Path, *, directory: str, cache: str = "") -> int:
        del log, cache
        # it has no clone of the project
        assert directory == "/"
        assert isinstance(command, tuple)
        self.as_root.append(f"{user.kind}: {command[-1]}")
        return 0


def test_what_an_ordinary_user_is_told_to_have_installed_is_installed_until_nothing_is_missing(tmp_path: Path) -> None:
    ask: Callable[[str], str] = "error: missing.\n  Run as root:  apt-get install {}\n".format
    machine = Told([ask("gcc"), ask("python3.11-venv"), "set-up is complete\n"], tmp_path)
    result = machine.install_as_told(USERS["ordinary"])
    assert machine.as_root == ["root: apt-get install gcc", "root: apt-get install python3.11-venv"]
    assert (result.status, result.seconds) == (0, 3.0)
    assert "Run as root:  apt-get install gcc" in result.told


def test_a_message_that_does_not_help_is_not_followed_for_ever(tmp_path: Path) -> None:
    machine = Told(["error: x\n  Run as root:  true\n"] * 10, tmp_path)
    assert machine.install_as_told(USERS["ordinary"]).status == 1
    assert len(machine.as_root) == fresh.MOST_REMEDIES


def test_a_failing_preparation_is_an_error_with_what_was_said() -> None:
    with pytest.raises(CommandError, match="no such place"):
        fresh._run("sh", "-c", "echo no such place >&2; exit 3")
