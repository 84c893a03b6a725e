"""scripts/testbed build-kernel: which source, what is changed in it, and what the configuration must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.softroce import build as build_module
from deploy.softroce.build import FRAGMENT, build, debian_mirror, newest_source, private_apt, unmet
from deploy.softroce.errors import TestbedError
from deploy.softroce.patches import RXE, let_unreliable_connections_recover, set_window

RESPONDER = """\
	case IB_QPT_UC:
		if (qp->resp.drop_msg || diff != 0) {
			if (pkt->mask & RXE_START_MASK) {
				qp->resp.drop_msg = 0;
				return RESPST_CHK_OP_SEQ;
			}
"""
PARAMETERS = "	RXE_MAX_PKT_PER_ACK		= 64,\n	RXE_MAX_UNACKED_PSNS		= 128,\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / RXE).mkdir(parents=True)
    (tmp_path / RXE / "rxe_resp.c").write_text(RESPONDER)
    (tmp_path / RXE / "rxe_param.h").write_text(PARAMETERS)
    return tmp_path


def test_a_new_message_makes_the_responder_forget_the_lost_one(source: Path) -> None:
    let_unreliable_connections_recover(source)
    lines = [line.strip() for line in (source / RXE / "rxe_resp.c").read_text().splitlines()]
    start = lines.index("qp->resp.drop_msg = 0;")
    assert lines[start + 2] == "qp->resp.opcode = -1;"
    assert lines[start + 4] == "rxe_put(qp->resp.mr);"
    assert lines[start + 7] == "return RESPST_CHK_OP_SEQ;"


def test_patching_twice_changes_nothing_more(source: Path) -> None:
    let_unreliable_connections_recover(source)
    once = (source / RXE / "rxe_resp.c").read_text()
    let_unreliable_connections_recover(source)
    assert (source / RXE / "rxe_resp.c").read_text() == once


@pytest.mark.parametrize("text", ["", RESPONDER * 2, RESPONDER.replace("diff != 0", "diff > 0")])
def test_a_source_that_changed_is_refused_untouched(source: Path, text: str) -> None:
    (source / RXE / "rxe_resp.c").write_text(text)
    with pytest.raises(TestbedError, match="not as expected"):
        let_unreliable_connections_recover(source)
    assert (source / RXE / "rxe_resp.c").read_text() == text


def test_the_window_can_be_raised_and_lowered_again(source: Path) -> None:
    set_window(source, 131_072)
    assert "RXE_MAX_UNACKED_PSNS		= 131072," in (source / RXE / "rxe_param.h").read_text()
    set_window(source, 128)
    assert (source / RXE / "rxe_param.h").read_text() == PARAMETERS


def test_a_source_without_a_window_is_refused(source: Path) -> None:
    (source / RXE / "rxe_param.h").write_text("")
    with pytest.raises(TestbedError, match="found 0 times"):
        set_window(source, 128)


def test_the_newest_source_is_taken_by_number() -> None:
    names = ["linux-source", "linux-source-7.9", "linux-source-7.10", "linux-source-6.12", "linux-source-7.3-rt"]
    assert newest_source(names, "sid") == "linux-source-7.10"


@pytest.mark.parametrize("names", [[], ["linux-source"], ["linux-source-6.12"]])
def test_a_suite_without_a_source_new_enough_is_refused(names: list[str]) -> None:
    with pytest.raises(TestbedError, match=r"no linux-source-7\.3 or newer"):
        newest_source(names, "bookworm")


def test_the_mirror_is_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "Debian-Security\thttp://mirror.test/debian-security/\nDebian\thttp://mirror.test/debian/\n"
    monkeypatch.setattr(build_module, "_run", lambda *_: listing)
    assert debian_mirror() == "http://mirror.test/debian/"


def test_a_machine_without_debian_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "_run", lambda *_: "")
    with pytest.raises(TestbedError, match="no mirror of Debian"):
        debian_mirror()


def test_apts_own_lists_stay_as_they_are(tmp_path: Path) -> None:
    options = private_apt("sid", tmp_path, "http://mirror.test/debian/")
    written = (tmp_path / "sources.list").read_text()
    assert written.endswith("http://mirror.test/debian/ sid main\n")
    assert f"Dir::State={tmp_path}/state" in options
    assert "Dir::Etc::SourceParts=/dev/null" in options


def test_settings_that_did_not_take_are_named() -> None:
    fragment = "# words\nCONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n"
    assert unmet(fragment, "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\n") == ["CONFIG_B=y"]


def test_the_fragment_asks_for_soft_roce_netem_and_virtual_time() -> None:
    wanted = unmet(FRAGMENT.read_text(), "")
    for name in (
        "RDMA_RXE",
        "NET_SCH_NETEM",
        "NET_SCH_TBF",
        "UML_TIME_TRAVEL_SUPPORT",
        "HOSTFS",
        "OVERLAY_FS",
        "BRIDGE",
    ):
        assert f"CONFIG_{name}=y" in wanted
    assert not any(line.startswith("CONFIG_DEBUG_KERNEL") for line in wanted)


def test_missing_build_tools_are_named_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name in ("flex", "xz") else f"/usr/bin/{name}")
    with pytest.raises(TestbedError, match="flex, xz-utils") as caught:
        build(print, suite="sid", jobs=1, source=None, configure_only=True, cache=tmp_path)
    assert caught.value.remedy == "apt-get install flex xz-utils"
    assert list(tmp_path.iterdir()) == []
