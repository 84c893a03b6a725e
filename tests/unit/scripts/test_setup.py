"""scripts/setup: takes this machine's pip settings along, does nothing twice, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib import provision, system
from scripts.lib import uv as uv_module
from scripts.lib.console import CommandError, fail
from scripts.lib.indexes import parse_pip_config, uv_environment, uv_flags
from scripts.lib.locking import check_no_address
from scripts.lib.provision import Provision
from scripts.lib.stamps import Stamp, digest_files, wheel_sources
from scripts.lib.uv import Uv, lock_entry, run_with_retries
from tests.support.repository import ROOT

# --- pip's settings for uv ---


def test_pip_options_are_read_with_pips_precedence() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://env.test/simple'",
            "global.index-url='https://global.test/simple'",
            "install.timeout='30'",
            "global.timeout='10'",
            "download.cert='/only/for/download.pem'",
        ]
    )
    assert parse_pip_config(listing) == {"index-url": "https://env.test/simple", "timeout": "30"}


def test_lines_that_are_no_settings_are_passed_over() -> None:
    assert parse_pip_config("WARNING: something\nglobal.cert=unquoted\n\nglobal.timeout='5'") == {"timeout": "5"}


def test_index_links_certificate_and_timeout_reach_uv(tmp_path: Path) -> None:
    pip = {
        "index-url": "https://mirror.test/simple",
        "extra-index-url": "https://a.test/simple\nhttps://b.test/simple",
        "find-links": f"{tmp_path}\nhttps://links.test/",
        "cert": "/etc/site.pem",
        "timeout": "180",
        "trusted-host": "mirror.test",
    }
    assert uv_environment(pip, {}) == {
        "UV_DEFAULT_INDEX": "https://mirror.test/simple",
        "UV_INDEX": "https://a.test/simple https://b.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path},https://links.test/",
        "SSL_CERT_FILE": "/etc/site.pem",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INSECURE_HOST": "mirror.test",
    }


def test_what_is_already_said_to_uv_is_left_alone() -> None:
    pip = {"index-url": "https://mirror.test/simple", "cert": "/etc/site.pem"}
    assert uv_environment(pip, {"UV_DEFAULT_INDEX": "https://mine.test", "SSL_CERT_FILE": "/mine.pem"}) == {}


def test_the_other_name_of_pips_timeout_counts_too() -> None:
    assert uv_environment({"default-timeout": "180"}, {}) == {"UV_HTTP_TIMEOUT": "180"}


def test_a_links_directory_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    assert uv_environment({"find-links": str(tmp_path / "missing")}, {}) == {}


@pytest.mark.parametrize(("setting", "flags"), [("true", ["--no-index"]), ("1", ["--no-index"]), ("0", []), ("", [])])
def test_no_index_is_passed_on(setting: str, flags: list[str]) -> None:
    assert uv_flags({"no-index": setting}) == flags


# --- the lock ---


LOCKS = sorted(ROOT.glob("requirements*.lock"), key=lambda path: path.name)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_and_hashes_every_package(lock: Path) -> None:
    entries = [line for line in lock.read_text().splitlines() if line[:1].strip()]
    assert len(entries) > 10
    assert [line for line in entries if "==" not in line or not line.endswith("\\")] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_address(lock: Path) -> None:
    check_no_address(lock.read_text())


def test_a_lock_with_an_address_is_refused() -> None:
    with pytest.raises(CommandError, match=r"https://somewhere\.test"):
        check_no_address("--index-url https://somewhere.test\nattrs==1.0")


def test_quic_is_locked_for_every_python_that_the_project_supports() -> None:
    lock = (ROOT / "requirements-quic.lock").read_text()
    releases = [line for line in lock.splitlines() if line.startswith("aioquic==")]
    markers = [line.partition(";")[2].strip(" \\") for line in releases]
    assert markers == ["python_full_version < '3.11'", "python_full_version >= '3.11'"]


def test_the_installer_and_the_build_backend_are_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for name in ("uv", "hatchling", "setuptools", "wheel"):
        assert "--hash=sha256:" in lock_entry(lock, name)


def test_one_entry_of_the_lock_stops_at_the_next_package() -> None:
    lock = "uv==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nuvloop==2.0 \\\n    --hash=sha256:cc\n"
    assert lock_entry(lock, "uv") == "uv==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"


def test_a_package_that_is_not_locked_is_an_error_with_a_remedy() -> None:
    with pytest.raises(CommandError) as caught:
        lock_entry("attrs==1.0\n", "uv")
    assert "scripts/lock" in caught.value.remedy


# --- repeating ---


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # the interpreter that runs the tests stands for the one of .venv
    monkeypatch.setattr(system, "LOCKED_PYTHON", sys.version_info[:2])
    (tmp_path / "fedrdma_fate").mkdir()
    for name in ("fedrdma_fate/__init__.py", "fedrdma_fate.pth", "pyproject.toml", "README.md", "requirements.lock"):
        (tmp_path / name).write_text(name)
    return tmp_path


class Recorder(Provision):
    """Records what it would install; its environment counts as usable."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.python.parent.mkdir(parents=True, exist_ok=True)
        if not self.python.is_symlink():
            self.python.symlink_to(sys.executable)
        self.done: list[str] = []

    def _install_environment(self) -> None:
        self.stamp.clear()
        self.done.append("environment")

    def _install_wheel(self) -> None:
        self.done.append("wheel")

    def _provide_pyverbs(self) -> None:
        """Would change the interpreter that runs the tests."""

    def _provide_iperf3(self) -> None:
        """Would fetch it where the machine has none."""

    def _provide_mosquitto(self) -> None:
        """Would fetch it where the machine has none."""

    def _provide_aioquic(self) -> None:
        """Would fetch it."""

    def _provide_testbed_tools(self) -> None:
        """Would install them where the machine has none."""


def _provision(tree: Path) -> list[str]:
    recorder = Recorder(tree)
    recorder.run()
    return recorder.done


def test_a_second_set_up_does_nothing(tree: Path) -> None:
    assert _provision(tree) == ["environment", "wheel"]
    assert _provision(tree) == []


def test_a_changed_source_reinstalls_only_the_wheel(tree: Path) -> None:
    _provision(tree)
    (tree / "fedrdma_fate" / "new.py").write_text("")
    assert _provision(tree) == ["wheel"]


def test_a_changed_lock_reinstalls_everything(tree: Path) -> None:
    _provision(tree)
    (tree / "requirements.lock").write_text("other")
    assert _provision(tree) == ["environment", "wheel"]


def test_a_vanished_interpreter_reinstalls_everything(tree: Path) -> None:
    _provision(tree)
    (tree / ".venv" / "bin" / "python").unlink()
    (tree / ".venv" / "bin" / "python").symlink_to("/nowhere/python3.11")
    assert _provision(tree) == ["environment", "wheel"]


def test_a_set_up_that_broke_off_is_done_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Recorder) -> None:
        raise CommandError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_install_wheel", broken)
        with pytest.raises(CommandError):
            _provision(tree)
    assert _provision(tree) == ["wheel"]


def test_byte_code_is_no_source(tree: Path) -> None:
    before = digest_files(wheel_sources(tree), tree)
    cache = tree / "fedrdma_fate" / "__pycache__"
    cache.mkdir()
    (cache / "x.cpython-311.pyc").write_bytes(b"x")
    assert digest_files(wheel_sources(tree), tree) == before


def test_moving_text_between_files_changes_the_digest(tree: Path) -> None:
    (tree / "a").write_text("12")
    (tree / "b").write_text("3")
    before = digest_files([tree / "a", tree / "b"], tree)
    (tree / "a").write_text("1")
    (tree / "b").write_text("23")
    assert digest_files([tree / "b", tree / "a"], tree) != before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"lock": 3}'])
def test_a_damaged_stamp_reads_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "stamp.json").write_text(content)
    assert Stamp(tmp_path / "stamp.json").read("lock") is None


# --- what is missing ---


def test_another_platform_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(CommandError, match="riscv64"):
        system.check_platform()


def test_without_root_the_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "missing_packages", lambda: ["build-essential", "python3.11-dev"])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CommandError, match="build-essential") as caught:
        system.ensure_packages()
    assert "apt-get install -y --no-install-recommends build-essential python3.11-dev" in caught.value.remedy


def test_as_root_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["build-essential"], []])
    commands: list[list[str]] = []

    def record(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(system, "missing_packages", lambda: next(answers))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.run", record)
    system.ensure_packages()
    assert [command[:2] for command in commands] == [["apt-get", "update"], ["apt-get", "install"]]
    assert commands[1][-1] == "build-essential"


def test_a_directory_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "notes.txt").write_text("mine")
    with pytest.raises(CommandError, match="not a virtual environment"):
        system.make_venv(tmp_path / ".venv")
    assert (tmp_path / ".venv" / "notes.txt").read_text() == "mine"


def test_a_download_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv_module, "PAUSE_SECONDS", 0.0)
    marker = tmp_path / "second"
    once = 'test -e "$1" || { touch "$1"; exit 1; }'
    run_with_retries(["sh", "-c", once, "sh", str(marker)], {}, "downloading")
    assert marker.exists()


def test_a_download_that_never_works_ends_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uv_module, "PAUSE_SECONDS", 0.0)
    with pytest.raises(CommandError, match="downloading failed 3 times") as caught:
        run_with_retries(["false"], {}, "downloading")
    assert fail(caught.value) == 1
    assert "pip config set global.index-url" in capsys.readouterr().err


def test_a_wheel_that_cannot_be_built_shows_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="building the wheel failed"):
        system.build_wheel(Path(sys.executable), tmp_path, tmp_path / "out")


def test_uv_is_called_with_the_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nenv | grep ^UV_ > {tmp_path}/environment\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    uv.chmod(0o755)
    for name in ("UV_DEFAULT_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(uv_module, "read_pip_config", lambda _python: {"index-url": "https://mirror.test/simple"})
    Uv(tmp_path / "bin" / "python").sync(tmp_path / "requirements.lock")
    assert "UV_DEFAULT_INDEX=https://mirror.test/simple" in (tmp_path / "environment").read_text()
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:2] == ["pip", "sync"]
    assert "--require-hashes" in arguments
    assert "--require-build-hashes" in arguments


# --- the commands themselves ---


@pytest.mark.parametrize("command", ["setup", "test", "demo", "lock", "docs"])
def test_every_command_explains_itself_without_doing_anything(command: str) -> None:
    result = subprocess.run(
        [ROOT / "scripts" / command, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"scripts/{command}" in result.stdout
    assert "set-up is complete" not in result.stdout


def test_without_python_3_11_the_commands_say_what_to_install() -> None:
    finder = f'. "{ROOT}/scripts/lib/common.sh"; is_python_3_11() {{ return 1; }}; find_python'
    result = subprocess.run(["bash", "-c", finder], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "apt-get install python3.11" in result.stderr


def test_the_interpreter_can_be_chosen(tmp_path: Path) -> None:
    # says yes to whether it is a 3.11
    chosen = tmp_path / "my-python"
    chosen.write_text("#!/bin/sh\nexit 0\n")
    chosen.chmod(0o755)
    finder = f'. "{ROOT}/scripts/lib/common.sh"; find_python'
    result = subprocess.run(
        ["bash", "-c", finder], capture_output=True, text=True, check=True, env={"PYTHON": str(chosen), "PATH": "/bin"}
    )
    assert result.stdout.strip() == str(chosen)


def test_two_set_ups_of_one_tree_take_turns(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from scripts.lib.provision import only_one\n"
    code += "with only_one(Path(sys.argv[1])): print('mine')"
    with provision.only_one(tmp_path):
        second = subprocess.Popen([sys.executable, "-c", code, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == "another set-up of this tree is running; waiting for it\n"
        assert second.poll() is None
    assert second.stdout.readline() == "mine\n"
    assert second.wait(10) == 0


def test_the_stamp_is_written_whole(tmp_path: Path) -> None:
    Stamp(tmp_path / "stamp.json").write({"lock": "a", "wheel": "b"})
    assert json.loads((tmp_path / "stamp.json").read_text()) == {"lock": "a", "wheel": "b"}
    assert [path.name for path in tmp_path.iterdir()] == ["stamp.json"]
