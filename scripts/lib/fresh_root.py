"""A bare Debian root for `scripts/fresh`: git and Python, from the machine's own mirror, and its package index."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.lib import debian
from scripts.lib.console import CommandError, step
from scripts.lib.debian import PackageUnavailableError

SUITE = "bookworm"
"""Debian 12: the one with Python 3.11."""
PACKAGES = ("git", "python3")
ROOM_BYTES = 16 * 2**30
"""The root with an environment, what was fetched for it, and a second environment that shares most of it."""
MARK = ".fedrdma-fresh"
"""A file in a root that says whose it is: only such a root is used again or removed."""

_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--")
_PASSED_ON = re.compile(r"UV_(?!CACHE_DIR$)\w+|(https?|all|no)_proxy|SSL_CERT_FILE|SSL_CLIENT_CERT", re.IGNORECASE)
_CERTIFICATES = ("cert", "client-cert")
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CLIENT_CERT")
_UV_SETTINGS = (Path("/etc/uv/uv.toml"), Path("~/.config/uv/uv.toml"))


class NoRootError(CommandError):
    """A bare root cannot be made on this machine, and why."""


def check_machine() -> None:
    """Make sure that a root can be made and entered here.

    Raises:
        NoRootError: it cannot.
    """
    if os.geteuid() != 0:
        raise NoRootError("only root can make a bare Debian and enter it.", "Run as root:  sudo scripts/fresh")
    missing = [tool for tool in ("unshare", "pivot_root", "mount", "tar", "git") if shutil.which(tool) is None]
    if missing:
        raise NoRootError(f"missing on this machine: {', '.join(missing)}.", "apt-get install util-linux mount tar git")
    tried = subprocess.run([*_NAMESPACES, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True)
    if tried.returncode:
        said = tried.stderr.decode(errors="replace").strip()
        raise NoRootError(
            f"this machine lets nobody mount in a namespace of their own: {said}",
            "In a container, start it with --privileged, or with --cap-add SYS_ADMIN and without AppArmor's profile.",
        )


def apt_sources(targets: str) -> list[str]:
    """Lines for sources.list: Debian's suites for SUITE, from the mirrors that the machine's apt uses.

    Args:
        targets: of `apt-get indextargets`: origin, label, codename, address and component, with tabs between them.

    Raises:
        NoRootError: it uses none of Debian's.
    """
    rows = [row.split("\t") for row in targets.splitlines() if row.count("\t") == 4]
    debians = [row for row in rows if row[0] == "Debian"]
    own = {f"deb {address} {name} {part}": None for _, _, name, address, part in debians if name.startswith(SUITE)}
    if any(f" {SUITE} main" in line for line in own):
        return list(own)
    # a machine with another release of Debian; its mirror has this one too
    mirrors = {address: None for _, label, _, address, _ in debians if label == "Debian"}
    if not mirrors:
        raise NoRootError(
            "this machine's apt knows no mirror of Debian, or has no lists of it yet.",
            "apt-get update, or add one to /etc/apt/sources.list.d.",
        )
    return [f"deb {next(iter(mirrors))} {SUITE} main"]


def apt_settings(dump: str) -> list[str]:
    """How the machine's apt goes through proxies, out of `apt-config dump`."""
    return [line for line in dump.splitlines() if re.match(r'Acquire::\w+::Proxy(::\S+)? ".+";', line)]


def base_command(program: Path, target: Path, settings: Sequence[str]) -> list[str]:
    """The command that makes a bare Debian as an archive; its sources.list goes to standard input."""
    options = [f"--aptopt={line.rstrip(';')}" for line in settings]
    fixed = ["--mode=root", "--variant=minbase", "--format=tar", f"--include={','.join(PACKAGES)}"]
    return [str(program), *fixed, *options, SUITE, str(target), "-"]


def make_base(target: Path) -> None:
    """Make the archive of a bare Debian.

    Raises:
        NoRootError: a step failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    form = "$(ORIGIN)\t$(LABEL)\t$(CODENAME)\t$(REPO_URI)\t$(COMPONENT)"
    sources = apt_sources(_said("apt-get", "indextargets", "--format", form, "Created-By: Packages"))
    settings = apt_settings(_said("apt-config", "dump"))
    scratch = target.parent / "mmdebstrap"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        program = find_mmdebstrap(scratch)
        unfinished = target.with_suffix(".unfinished.tar")
        with step(f"a bare Debian {SUITE} with {' and '.join(PACKAGES)} (about two minutes)"):
            command = base_command(program, unfinished, settings)
            text = "".join(f"{line}\n" for line in sources)
            done = subprocess.run(command, check=False, capture_output=True, text=True, input=text)
            if done.returncode:
                raise NoRootError("mmdebstrap failed:", "\n".join(done.stderr.splitlines()[-15:]))
        unfinished.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def find_mmdebstrap(scratch: Path) -> Path:
    """The machine's own, or Debian's, unpacked into a directory: it needs no installing.

    Raises:
        NoRootError: it cannot be had.
    """
    installed = shutil.which("mmdebstrap")
    if installed is not None:
        return Path(installed)
    try:
        debian.fetch(["mmdebstrap"], scratch)
        return debian.unpack(scratch) / "usr/bin/mmdebstrap"
    except PackageUnavailableError as error:
        raise NoRootError(f"there is no mmdebstrap: {error}.", "apt-get install mmdebstrap") from error


def unpack(base: Path, root: Path) -> None:
    """Make a root of the archive.

    Raises:
        NoRootError: there is no room, or tar failed.
    """
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < ROOM_BYTES:
        raise NoRootError(
            f"{root} has {free / 2**30:.1f} GiB free; a try takes up to {ROOM_BYTES / 2**30:.0f} GiB.",
            "Name a directory with more room:  --root DIR",
        )
    # first, so that what was unpacked in part is removed
    (root / MARK).touch()
    done = subprocess.run(["tar", "-x", "-p", "-C", root, "-f", base], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoRootError(f"{base} cannot be unpacked: {done.stderr.strip().splitlines()[-1]}")


def configure(root: Path, pip: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Tell the root what the machine knows of the network: names, package index, proxies, certificates.

    Args:
        root: the root.
        pip: settings of the machine's pip, by name.
        environment: of this process.
    """
    for name in ("resolv.conf", "hosts"):
        _copy(Path("/etc", name), root, f"/etc/{name}")
    certificates = [pip[name] for name in _CERTIFICATES if name in pip]
    certificates += [environment[name] for name in _CERTIFICATE_VARIABLES if environment.get(name)]
    for certificate in certificates:
        _copy(Path(certificate), root, certificate_place(certificate))
    settings = next((path for each in _UV_SETTINGS if (path := each.expanduser()).is_file()), None)
    if settings is not None:
        (root / "etc/uv").mkdir(exist_ok=True)
        shutil.copy(settings, root / "etc/uv/uv.toml")
    written = configparser.ConfigParser(interpolation=None)
    places = {name: certificate_place(pip[name]) for name in _CERTIFICATES if name in pip}
    written["global"] = {**pip, **places}
    with (root / "etc/pip.conf").open("w") as file:
        written.write(file)


def certificate_place(path: str) -> str:
    """Where the root has a file of certificates: not where a package of Debian writes its own."""
    return f"/etc/fedrdma-fresh{Path(path).absolute()}"


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the machine that say where packages come from, with the places that the root has things at."""
    found = {name: value for name, value in environment.items() if _PASSED_ON.fullmatch(name)}
    places = {name: certificate_place(found[name]) for name in _CERTIFICATE_VARIABLES if found.get(name)}
    return {**found, **places}


def local_links(pip: Mapping[str, str]) -> list[Path]:
    """Directories of this machine where pip finds packages."""
    links = pip.get("find-links", "").split()
    return [Path(link) for link in links if "://" not in link and Path(link).is_dir()]


def enter_command(
    root: Path,
    user: str,
    directory: str,
    command: Sequence[str],
    *,
    shm_bytes: int,
    shown: Mapping[Path, str],
    environment: Mapping[str, str],
) -> list[str]:
    """What runs a command in the root, in namespaces of its own that end with it.

    Args:
        root: the root.
        user: by name.
        directory: of the root, in which the command starts.
        command: program and arguments.
        shm_bytes: size of /dev/shm.
        shown: directories of this machine, and where the root has them, to be read only.
        environment: the whole of the command's.
    """
    script = Path(__file__).with_name("fresh_enter.sh")
    binds = [part for source, target in shown.items() for part in (str(source), target)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    place = [str(root), user, directory, str(shm_bytes), *binds]
    return [*_NAMESPACES, "sh", str(script), *place, "--", "env", "-i", *variables, *command]


def is_ours(root: Path) -> bool:
    """Whether a root was made by this module."""
    return (root / MARK).is_file()


def remove(root: Path) -> None:
    """Remove a root. Nothing of the machine is mounted in it outside the namespaces, which have ended."""
    if is_ours(root):
        shutil.rmtree(root)


def _copy(source: Path, root: Path, place: str) -> None:
    """A file of this machine, if it is there, in the root."""
    if source.is_file():
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy(source, target)


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoRootError(f"{command[0]} does not work here, so this is no Debian: {error}.") from error


PYTHON = Path(sys.executable)
"""The interpreter whose pip knows the machine's index."""
