"""What FATE may unpickle from tables in a silo's process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from fractions import Fraction

import pytest
from fate.arch.computing.serdes import get_serdes_by_type
from fate.arch.computing.serdes._restricted_serdes import Whitelist
from fate.arch.config import cfg

from examples.gpt2_advertisegen.tables import restrict_tables


@pytest.fixture
def restricted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Whitelist, "loaded", False)
    monkeypatch.setattr(Whitelist, "deserialize_whitelist", {})
    with cfg.temp_override({"safety.serdes.restricted_type": "unrestricted"}):
        restrict_tables()
        yield


@pytest.mark.usefixtures("restricted")
def test_tables_of_the_job_take_no_name_from_a_peer() -> None:
    with pytest.raises(ValueError, match="fractions Fraction"):
        get_serdes_by_type(0).deserialize(pickle.dumps(Fraction(1, 2)))


@pytest.mark.usefixtures("restricted")
def test_tables_of_the_job_hold_slices_of_bytes() -> None:
    assert get_serdes_by_type(0).deserialize(pickle.dumps((3, b"slice"))) == (3, b"slice")
