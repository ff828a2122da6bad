"""Fetch an image set: limited downloads, checksums, and a set that is complete or absent.

Downloads go into `.fetch-NAME` in the data folder. A complete file or folder is renamed to its
place; the rest is removed, after a kill by the next command.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from candidly.bench.sources.catalogue import (
    Download,
    ImageSet,
    data_folder,
    find_set,
    how_to_get,
    load_set,
    locate,
)
from candidly.errors import InputError, system_reason

TIMEOUT = 30.0  # seconds of silence after which a connection counts as cut
CHUNK = 1 << 14  # bytes
ADVICE = "try again later, or name another server with --mirror URL."


def fetch_set(name: str, data_dir: str | Path | None = None, mirror: str | None = None) -> str:
    """Download what is missing of an image set.

    Parameters
    ----------
    name : str
        A key of `SETS`.
    data_dir : path, optional
        Folder of the image sets; by default the environment variable CANDIDLY_DATA names it.
    mirror : str, optional
        Address of a folder with the official files, used instead of their official addresses.

    Returns
    -------
    str
        A sentence on where the set is.

    Raises
    ------
    InputError
        If a download fails or is not the official file; nothing of it stays.
    """
    chosen = find_set(name)
    root = data_folder(data_dir)
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise InputError(
            f"--mirror {mirror}: expected an address that begins with http:// or https://."
        )
    absent = [part for part in chosen.parts if not _whole(name, part, root)]
    if not absent:
        return f"{name} is already there: {_places(chosen, root)}"
    if not chosen.downloads:
        missing = f"{name} ({', '.join(absent)})"
        raise InputError(f"{missing} cannot be fetched by this command. {how_to_get(name, root)}")
    try:
        with _staging(root, name) as staging:
            for item in chosen.downloads:
                if set(item.parts) & set(absent):
                    _install(item, chosen, root, staging, mirror)
    except OSError as error:
        raise InputError(f"{root} cannot be written to: {system_reason(error)}") from error
    return f"{name} is fetched: {_places(chosen, root)}"


def _whole(name: str, part: str, root: Path) -> bool:
    """Return whether a part can be read; large sets that cannot be fetched need only be found."""
    if not find_set(name).downloads:
        return locate(find_set(name), part, root) is not None
    try:
        return len(load_set(name, part, root)[0]) > 0
    except InputError:
        return False


def _places(chosen: ImageSet, root: Path) -> str:
    return ", ".join(sorted({str(locate(chosen, part, root)) for part in chosen.parts}))


@contextmanager
def _staging(root: Path, name: str) -> Iterator[Path]:
    """An empty folder that no other process uses, removed at the end."""
    import fcntl

    folder = root / f".fetch-{name}"
    lock = root / f".fetch-{name}.lock"
    folder.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{name} is being fetched into {root} by another process.") from error
        try:
            shutil.rmtree(folder)
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _install(
    item: Download, chosen: ImageSet, root: Path, staging: Path, mirror: str | None
) -> None:
    """Download one file and put it, or the folder packed in it, in its place.

    What is there is never replaced.
    """
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
    """Download a file into the staging folder and verify its checksum."""
    import pooch
    from requests.exceptions import HTTPError, RequestException

    pooch.get_logger().setLevel("WARNING")
    save = partial(_save, item=item)
    try:
        return Path(
            pooch.retrieve(url, f"sha256:{item.sha256}", item.file, staging, downloader=save)
        )
    except InputError:
        raise
    except HTTPError as error:
        answer: Any = error.response
        raise InputError(f"{url} answers {answer.status_code} {answer.reason}: {ADVICE}") from error
    except RequestException as error:
        raise InputError(f"{url} cannot be downloaded ({_root_cause(error)}): {ADVICE}") from error
    except ValueError as error:  # a wrong checksum
        raise InputError(f"{url}: {error}") from error


def _save(url: str, output_file: str, pooch: Any, *, item: Download) -> None:
    """Download into a file, as pooch asks its downloaders to."""
    from pooch import HTTPDownloader

    download = HTTPDownloader(chunk_size=CHUNK, timeout=TIMEOUT, hooks={"response": _keep_encoding})
    with open(output_file, "wb") as file, _byte_bar(item) as advance:
        download(url, LimitedFile(file, url, item, advance), pooch)


def _keep_encoding(response: Any, **_: Any) -> None:
    """Keep a .gz file as it is, even if the server declares it to be an encoded one."""
    response.raw.headers.pop("Content-Encoding", None)


class LimitedFile:
    """A file that takes no more bytes than the official download has."""

    def __init__(
        self, file: BinaryIO, url: str, item: Download, advance: Callable[[int], None]
    ) -> None:
        self.file = file
        self.url = url
        self.item = item
        self.advance = advance

    def write(self, chunk: bytes) -> None:
        if self.file.tell() + len(chunk) > self.item.size:
            official = f"{self.item.size:,} bytes of the official {self.item.file}"
            raise InputError(f"{self.url} sends more than the {official}: {ADVICE}")
        self.file.write(chunk)
        self.advance(len(chunk))

    def flush(self) -> None:
        self.file.flush()


def _root_cause(error: BaseException) -> str:
    """Say what happened, without the texts of the libraries in between."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return str(getattr(error, "strerror", None) or error)


def _unpack(archive: Path, chosen: ImageSet, staging: Path) -> Path:
    """Unpack the set's folder; refuse archives with members that lead elsewhere."""
    place = staging / "unpacked"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
        if not all(chosen.holds(place / chosen.folders[0], part) for part in chosen.parts):
            raise tarfile.ReadError(f"it lacks files of {chosen.title}")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{archive.name} cannot be unpacked: {error}. It was removed.") from error
    return place / chosen.folders[0]


@contextmanager
def _byte_bar(item: Download) -> Iterator[Callable[[int], None]]:
    """Yield `advance(bytes)`, which shows progress on a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda count: None
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

    columns = [
        TextColumn("{task.description}"),
        BarColumn(24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(item.file, total=item.size)
        yield lambda count: progress.update(task, advance=count)
