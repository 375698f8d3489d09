"""A mixture on a real S3 server, of members that are there and of members that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.data.reading.mixture import MemberSpec, MixtureSet, write_mixture
from headway.errors import BadInput
from headway.state.store import Store
from support.s3 import credentials, s3_server
from support.token_sets import write_set

pytestmark = pytest.mark.local


def test_a_mixture_and_its_members_may_be_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
        write_set(tmp_path / "s3" / "bucket" / "sets" / "a", [(range(101), None)], vocab_size=2**16)
        write_set(tmp_path / "b", [(range(1000, 1101), None)], vocab_size=2**16)
        members = [
            MemberSpec(name="a", location="../sets/a", weight=1),
            MemberSpec(name="b", location=str(tmp_path / "b"), weight=1),
        ]
        written = write_mixture(Store("s3://bucket/mix"), members)
        mixture = MixtureSet.open(Store("s3://bucket/mix"))
        assert mixture.manifest == written
        assert mixture.read(np.array([15, 4]), 10).tokens[:, 0].tolist() == [1050, 40]
        mixture.close()
        outside = [MemberSpec(name="a", location="../../other/a", weight=1)]
        with pytest.raises(BadInput, match="is outside of s3://bucket"):
            write_mixture(Store("s3://bucket/mix"), outside)
