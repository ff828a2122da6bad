"""Files written whole or not at all, locks and hashes."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from candidly.errors import InputError
from candidly.storage import atomic
from candidly.storage.atomic import file_hash, is_held, open_lock, remove_orphans, write_atomically

ORPHAN = ".candidly-0123456789abcdef.tmp"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_with_ordinary_permissions(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "a", lambda path: path.write_text("whole"))
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_text() == "whole"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert names(tmp_path) == ["a"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "a").symlink_to(tmp_path / "thesis")
    write_atomically(tmp_path / "a", lambda path: path.write_text("new"))
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert (tmp_path / "a").read_text() == "new"
    assert not (tmp_path / "a").is_symlink()


def test_a_temporary_name_that_is_taken_by_a_link_is_refused(tmp_path, monkeypatch):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / ORPHAN).symlink_to(tmp_path / "thesis")
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda n: "0123456789abcdef")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a", lambda path: path.write_text("new"))
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert names(tmp_path) == [ORPHAN, "thesis"]


def test_temporary_names_cannot_be_foreseen(tmp_path):
    seen = set()
    for _ in range(20):
        write_atomically(tmp_path / "a", lambda path: (seen.add(path.name), path.write_text("")))
    assert len(seen) == 20
    assert all(atomic.TEMPORARY.fullmatch(name) for name in seen)


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    (tmp_path / "a").write_text("old")

    def half(path):
        path.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "a", half)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


WRITER = """
import sys, time
from pathlib import Path
from candidly.storage.atomic import write_atomically
def slowly(path):
    path.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
write_atomically(Path(sys.argv[1]), slowly)
"""


def writer(path):
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "writing\n"
    return child


def killed(child):
    child.kill()
    child.wait()
    child.stdout.close()


def test_orphans_go_and_files_being_written_stay(tmp_path):
    killed(writer(tmp_path / "a"))
    assert len(names(tmp_path)) == 1, "the orphan of a killed writer"
    busy = writer(tmp_path / "b")
    try:
        assert len(names(tmp_path)) == 1, "the orphan is gone"
        write_atomically(tmp_path / "c", lambda path: path.write_text("c"))
        assert len(names(tmp_path)) == 2, "the file of a living writer is not"
    finally:
        killed(busy)
    write_atomically(tmp_path / "c", lambda path: path.write_text("c"))
    assert names(tmp_path) == ["c"]


def test_only_our_own_temporary_files_are_orphans(tmp_path):
    mine = [
        ".candidly-notes.tmp",
        ".candidly-0123456789abcde.tmp",
        "candidly-0123456789abcdef.tmp",
        ".x.lock",
    ]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".candidly-0000000000000000.tmp").mkdir()
    (tmp_path / ".candidly-1111111111111111.tmp").symlink_to(tmp_path / mine[0])
    before = names(tmp_path)
    remove_orphans(tmp_path)
    assert names(tmp_path) == before


def test_a_lock_excludes_and_ends_with_its_descriptor(tmp_path):
    path = tmp_path / "lock"
    descriptor = open_lock(path)
    assert is_held(path)
    with pytest.raises(BlockingIOError):
        open_lock(path)
    os.close(descriptor)
    assert not is_held(path)
    os.close(open_lock(path))


def planted_link(path):
    (path.parent / "thesis").write_text("years of work")
    path.symlink_to(path.parent / "thesis")


@pytest.mark.parametrize(
    "plant", [planted_link, Path.mkdir, lambda path: path.write_text("mine"), os.mkfifo]
)
def test_only_an_empty_regular_file_can_be_a_lock(tmp_path, plant):
    path = tmp_path / "lock"
    plant(path)
    began = time.monotonic()
    with pytest.raises(
        InputError,
        match=r"lock is not a lock file \(expected an empty regular file\): move it away",
    ):
        open_lock(path)
    assert time.monotonic() - began < 5
    assert path.is_symlink() or path.exists()
    if (tmp_path / "thesis").exists():
        assert (tmp_path / "thesis").read_text() == "years of work"
    elif path.is_file():
        assert path.read_text() == "mine"


def test_hashes_are_those_of_sha256sum(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_hash(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
