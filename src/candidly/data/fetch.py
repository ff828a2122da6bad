"""Fetch an image set: checksums, resumed downloads, and a set that is complete or absent.

Everything happens in `.fetch-NAME` beside the sets; what is whole is renamed to its place. Only the `.part` of a
download that was cut stays, for the same command to go on with.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from candidly.data.catalogue import Download, ImageSet, data_folder, find_set, how_to_get, load_set, locate
from candidly.errors import InputError, Interrupted

ATTEMPTS = 5  # connections in a row that bring nothing
PAUSE = 1.0  # seconds before another connection
TIMEOUT = 30.0  # seconds of silence that count as a cut
CHUNK = 1 << 14


def fetch_set(name: str, data_dir: str | Path | None = None, mirror: str | None = None) -> str:
    """Download what is missing of a set, and return a sentence on where it is.

    `mirror` is the address of a folder with the official files, taken instead of their official addresses.
    """
    chosen, root = find_set(name), data_folder(data_dir)
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise InputError(f"--mirror {mirror}: expected an address that begins with http:// or https://.")
    absent = [part for part in chosen.parts if not _whole(name, part, root)]
    if not absent:
        return f"{name} is already there: {_places(chosen, root)}"
    if not chosen.downloads:
        raise InputError(f"{name} ({', '.join(absent)}) cannot be fetched by this command. {how_to_get(name, root)}")
    staging = root / f".fetch-{name}"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        for item in chosen.downloads:
            if set(item.parts) & set(absent):
                _install(item, chosen, root, staging, mirror)
        shutil.rmtree(staging)
    except OSError as error:
        raise InputError(f"{root} cannot be written to: {error}.") from error
    finally:
        if staging.is_dir() and not any(staging.iterdir()):
            staging.rmdir()
    return f"{name} is fetched: {_places(chosen, root)}"


def _whole(name: str, part: str, root: Path) -> bool:
    """Can the part be read? Sets that are not fetched from here, and are large, need only be found."""
    if not find_set(name).downloads:
        return locate(find_set(name), part, root) is not None
    try:
        return len(load_set(name, part, root)[0]) > 0
    except InputError:
        return False


def _places(chosen: ImageSet, root: Path) -> str:
    return ", ".join(sorted({str(locate(chosen, part, root)) for part in chosen.parts}))


def _install(item: Download, chosen: ImageSet, root: Path, staging: Path, mirror: str | None) -> None:
    """Download one file, and put it, or the folder packed in it, in its place; what stands there is not touched."""
    import pooch  # type: ignore[import-untyped]

    target = root / chosen.folders[0] / ("" if item.packed else item.file)
    if target.exists():
        if target.is_file() and pooch.file_hash(target) == item.sha256:
            return
        raise InputError(
            f"{target} is there, but not as the official {item.file} has it. "
            "Move it away or remove it, then run the same command again."
        )
    ready = _download(item, f"{mirror.rstrip('/')}/{item.file}" if mirror else item.url, staging)
    if item.packed:
        ready = _unpack(ready, chosen, staging)
    target.parent.mkdir(parents=True, exist_ok=True)
    ready.rename(target)


def _download(item: Download, url: str, staging: Path) -> Path:
    """The file in the staging folder, its checksum verified."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = Resuming(staging / f"{item.file}.part")
    try:
        return Path(pooch.retrieve(url, f"sha256:{item.sha256}", item.file, staging, downloader=downloader))
    except InputError:
        raise
    except ValueError as error:  # pooch has removed the file
        raise InputError(f"{url}: {error}") from error


def _unpack(archive: Path, chosen: ImageSet, staging: Path) -> Path:
    """The set's folder out of its archive; members that lead elsewhere are refused, and nothing of it stays."""
    place = staging / "unpacked"
    shutil.rmtree(place, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
        if not all(chosen.holds(place / chosen.folders[0], part) for part in chosen.parts):
            raise tarfile.ReadError(f"it lacks files of {chosen.title}")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        shutil.rmtree(place, ignore_errors=True)
        archive.unlink()
        raise InputError(f"{archive.name} cannot be unpacked: {error}. It was removed.") from error
    return place / chosen.folders[0]


class Resuming:
    """A downloader for pooch that collects the file in `part`, and goes on with what is there already."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        try:
            with _byte_bar(self.part.stem) as show:
                in_vain = 0
                while in_vain < ATTEMPTS:
                    before = self._size()
                    if self._go_on(url, show):
                        self.part.replace(output_file)
                        return
                    in_vain = 0 if self._size() > before else in_vain + 1
                    time.sleep(PAUSE)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; {self._kept()}") from None
        raise InputError(f"{url}: {ATTEMPTS} connections in a row brought nothing; {self._kept()}")

    def _go_on(self, url: str, show: Callable[[int, int | None], None]) -> bool:
        """One connection; True when the file is whole."""
        done = self._size()
        response = self._connect(url, done)
        if response is None:
            return self._size() > 0
        with response:
            if response.status != 206:  # the server begins anew, knowing nothing of ranges
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length and length.isdigit() else None
            with self.part.open("ab" if done else "wb") as file:
                for chunk in _chunks(response):
                    show(done, total)
                    done += file.write(chunk)
                show(done, total)
        return done == total if total is not None else done > 0

    def _connect(self, url: str, done: int) -> HTTPResponse | None:
        """The answer that brings the bytes from `done` on; None if there are no more, or if `part` did not fit."""
        hint = "try again later, or name another server with --mirror URL."
        try:
            response = urlopen(Request(url, headers={"Range": f"bytes={done}-"} if done else {}), timeout=TIMEOUT)
        except HTTPError as error:
            if error.code != 416:
                raise InputError(f"{url} answers {error.code} {error.reason}: {hint}") from error
            if error.headers.get("Content-Range") != f"bytes */{done}":
                self.part.unlink()
            return None
        except (OSError, HTTPException) as error:
            raise InputError(f"{url} cannot be reached ({getattr(error, 'reason', error)}): {hint}") from error
        if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            response.close()
            self.part.unlink()
            return None
        return response

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _kept(self) -> str:
        return f"the {self._size() / 1e6:.1f} MB that came are kept, and the same command goes on from there."


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """What the connection brings, until it ends, well or not: the length tells which."""
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, HTTPException):
        return


@contextmanager
def _byte_bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields `show(done, total)`: megabytes, speed and time left on a terminal, nothing when the output is piped."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = [TextColumn("{task.description}"), BarColumn(24), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, TimeRemainingColumn(compact=True), console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
