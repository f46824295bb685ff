"""Places that are known before any setting is read: the user's home, and the data folder in it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.home import absolute, data_home, folder_of, user_home

OWN = pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(
    ("environ", "home"),
    [({"HOME": "/h"}, "/h"), ({}, OWN), ({"HOME": ""}, OWN), ({"HOME": "h"}, OWN), ({"HOME": "~"}, OWN)],
)
def test_home_is_a_whole_path_or_that_of_the_system(environ: Mapping[str, str], home: str) -> None:
    assert user_home(environ) == Path(home)


@pytest.mark.parametrize(
    ("given", "environ", "home"),
    [
        ("/given", {"DENDRO_HOME": "/own", "XDG_DATA_HOME": "/data"}, "/given"),
        (None, {"DENDRO_HOME": "/own", "XDG_DATA_HOME": "/data"}, "/own"),
        ("", {"DENDRO_HOME": "/own"}, "/own"),
        (None, {"DENDRO_HOME": "", "XDG_DATA_HOME": "/data"}, "/data/dendro"),
        (None, {"XDG_DATA_HOME": "data"}, "/h/.local/share/dendro"),
        (None, {}, "/h/.local/share/dendro"),
        ("there", {}, "/cwd/there"),
        (None, {"DENDRO_HOME": "../there"}, "/cwd/../there"),
        ("~", {}, "/h"),
        (None, {"DENDRO_HOME": "~/there"}, "/h/there"),
        ("~ann/there", {}, "/cwd/~ann/there"),
    ],
)
def test_data_folder_is_that_which_was_given_or_the_users_place_for_data(
    given: str | None, environ: Mapping[str, str], home: str
) -> None:
    assert data_home(given, {"HOME": "/h", **environ}, Path("/cwd")) == Path(home)


def test_paths_of_a_person_count_from_where_they_stand() -> None:
    places = [absolute(text, Path("/base"), Path("/h")) for text in ("a/b", "/a", "~", "~/a", "~a", "a~")]
    assert places == [Path(it) for it in ("/base/a/b", "/a", "/h", "/h/a", "/base/~a", "/base/a~")]


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///a/b", "/a/b"),
        ("file:///a%20b/%C3%A9%25", "/a b/é%"),
        ("file:///", "/"),
        ("file://host/a", None),
        ("file:a", None),
        ("s3://bucket/a", None),
        ("FILE:///a", None),
    ],
)
def test_folder_of_a_url_is_read_with_its_escapes(url: str, folder: str | None) -> None:
    assert folder_of(url) == (None if folder is None else Path(folder))
