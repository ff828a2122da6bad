"""Finding and fetching image sets, from a server on loopback that cuts, lies and refuses."""

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from children import ended

from candidly.bench.sources import fetch
from candidly.bench.sources.catalogue import SETS, load_set, survey
from candidly.bench.sources.fetch import fetch_set
from candidly.errors import InputError

ARCHIVE, FOLDER = "cifar-100-binary.tar.gz", "cifar-100-binary"


class Server(ThreadingHTTPServer):
    """Holds `files`; each connection in `cuts` ends after so many bytes of the body."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.cuts = []
        self.seen = []  # path and Range of each request
        self.status = 200
        self.headers = {}  # sent with each answer
        self.lengths = True
        self.hold = threading.Event()  # a cut of None sends half of the body and waits for this
        self.url = f"http://127.0.0.1:{self.server_port}/sets"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Range")))
        body = self.server.files.get(self.path.removeprefix("/sets/"))
        if body is None:
            self.send_error(404)
            return
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.answer(body)

    def answer(self, body):
        cut = self.server.cuts.pop(0) if self.server.cuts else len(body)
        with contextlib.suppress(ConnectionError):  # the client may have seen enough
            self.wfile.write(body[: len(body) // 2 if cut is None else cut])
            if cut is None:
                self.wfile.flush()
                self.server.hold.wait(20)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("CANDIDLY_DATA", raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.hold.set()
        running.shutdown()
        thread.join()


def archive(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


RECORDS = np.random.default_rng(0).integers(0, 20, 3074 * 40, dtype=np.uint8).tobytes()
WHOLE = archive((f"{FOLDER}/train.bin", RECORDS), (f"{FOLDER}/test.bin", RECORDS[:3074]))


def offer(server, monkeypatch, name, files):
    """Let the server hold `files`, and the catalogue know their checksums and sizes."""
    server.files = files
    items = tuple(
        replace(
            item, sha256=hashlib.sha256(files[item.file]).hexdigest(), size=len(files[item.file])
        )
        for item in SETS[name].downloads
    )
    monkeypatch.setitem(SETS, name, replace(SETS[name], downloads=items))


@pytest.fixture
def cifar(server, monkeypatch):
    offer(server, monkeypatch, "cifar100", {ARCHIVE: WHOLE})
    return server


def leftovers(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


INSTALLED = [f"{FOLDER}/test.bin", f"{FOLDER}/train.bin"]


def test_an_archive_is_fetched_unpacked_and_read(cifar, tmp_path):
    root = tmp_path / "new" / "data"
    assert fetch_set("cifar100", root, cifar.url + "/") == f"cifar100 is fetched: {root / FOLDER}"
    assert leftovers(tmp_path) == [f"new/data/{name}" for name in INSTALLED]
    assert not (root / ".fetch-cifar100").exists()
    images, labels = load_set("cifar100", "train", root)
    assert images.shape == (40, 32, 32, 3)
    np.testing.assert_array_equal(labels, np.frombuffer(RECORDS, np.uint8)[1::3074])
    assert cifar.seen == [(f"/sets/{ARCHIVE}", None)]


def test_what_is_there_is_not_fetched_again(cifar, tmp_path):
    fetch_set("cifar100", tmp_path, cifar.url)
    cifar.seen.clear()
    assert (
        fetch_set("cifar100", tmp_path, cifar.url)
        == f"cifar100 is already there: {tmp_path / FOLDER}"
    )
    assert cifar.seen == []


def test_a_cut_connection_leaves_nothing_and_the_same_command_starts_again(cifar, tmp_path):
    cifar.cuts = [1000]
    left = len(WHOLE) - 1000
    message = (
        rf"{ARCHIVE} cannot be downloaded \(.*1000 bytes read, {left} more expected.*\): try again"
    )
    with pytest.raises(InputError, match=message):
        fetch_set("cifar100", tmp_path, cifar.url)
    assert list(tmp_path.iterdir()) == []
    fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == INSTALLED
    assert [wanted for _, wanted in cifar.seen] == [None, None]


@pytest.mark.parametrize("lengths", [True, False])
def test_a_server_that_sends_too_much_is_stopped(cifar, tmp_path, monkeypatch, lengths):
    cifar.files[ARCHIVE] = WHOLE + bytes(50_000_000)
    cifar.lengths = lengths
    written = []
    monkeypatch.setattr(fetch, "_byte_bar", lambda item: contextlib.nullcontext(written.append))
    with pytest.raises(InputError) as caught:
        fetch_set("cifar100", tmp_path, cifar.url)
    official = f"the {len(WHOLE):,} bytes of the official {ARCHIVE}"
    assert f"{cifar.url}/{ARCHIVE} sends more than {official}: try again" in str(caught.value)
    assert sum(written) <= len(WHOLE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_file_that_the_server_calls_encoded_is_kept_as_it_is(cifar, tmp_path, encoding):
    cifar.headers = {"Content-Encoding": encoding}
    fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == INSTALLED


def test_a_server_that_tells_no_length(cifar, tmp_path):
    cifar.lengths = False
    fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == INSTALLED


def test_what_a_killed_command_left_is_removed(cifar, tmp_path):
    (tmp_path / ".fetch-cifar100" / "unpacked").mkdir(parents=True)
    (tmp_path / ".fetch-cifar100" / ARCHIVE).write_bytes(WHOLE[:1000])
    (tmp_path / ".fetch-cifar100.lock").touch()
    fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == INSTALLED
    assert not (tmp_path / ".fetch-cifar100").exists()


def test_two_commands_do_not_fetch_the_same_set_at_once(cifar, tmp_path):
    with fetch._staging(tmp_path, "cifar100") as staging:
        with pytest.raises(
            InputError, match=rf"cifar100 is being fetched into {tmp_path} by another process"
        ):
            fetch_set("cifar100", tmp_path, cifar.url)
        assert staging.is_dir()
        fetch_set("cifar100", tmp_path / "elsewhere", cifar.url)


def test_a_wrong_checksum_leaves_nothing(cifar, tmp_path):
    cifar.files[ARCHIVE] = WHOLE[:-1] + b"?"
    expected, got = (
        hashlib.sha256(content).hexdigest() for content in (WHOLE, cifar.files[ARCHIVE])
    )
    with pytest.raises(InputError, match=rf"{ARCHIVE}: .*expected sha256:{expected} but got {got}"):
        fetch_set("cifar100", tmp_path, cifar.url)
    assert list(tmp_path.iterdir()) == []
    cifar.files[ARCHIVE] = WHOLE
    fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == INSTALLED


def test_server_errors_are_reported_in_a_sentence(cifar, tmp_path):
    with pytest.raises(
        InputError, match=rf"/elsewhere/{ARCHIVE} answers 404 Not Found: try again later"
    ):
        fetch_set("cifar100", tmp_path, cifar.url.replace("sets", "elsewhere"))
    for status, reason in ((416, "Requested Range Not Satisfiable"), (503, "Service Unavailable")):
        cifar.status = status
        with pytest.raises(
            InputError, match=rf"/sets/{ARCHIVE} answers {status} {reason}: try again later"
        ):
            fetch_set("cifar100", tmp_path, cifar.url)
    with pytest.raises(
        InputError,
        match=rf"127\.0\.0\.1:1/{ARCHIVE} cannot be downloaded \(Connection refused\): try",
    ):
        fetch_set("cifar100", tmp_path, "http://127.0.0.1:1")
    with pytest.raises(
        InputError,
        match=rf"http://no\.invalid/{ARCHIVE} cannot be downloaded \([^()]+\): try again",
    ):
        fetch_set("cifar100", tmp_path, "http://no.invalid")
    with pytest.raises(
        InputError, match="--mirror ftp://x: expected an address that begins with http"
    ):
        fetch_set("cifar100", tmp_path, "ftp://x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            archive((f"{FOLDER}/train.bin", RECORDS), (f"{FOLDER}/../../../evil", b"!")),
            "outside the destination",
        ),
        (archive(("/evil/train.bin", RECORDS)), "it lacks files of CIFAR-100"),
        (archive((f"{FOLDER}/train.bin", RECORDS)), "it lacks files of CIFAR-100"),
        (WHOLE[:-100], "cannot be unpacked"),
        (b"no archive", "cannot be unpacked"),
    ],
)
def test_archives_that_are_not_what_they_should_be(server, monkeypatch, tmp_path, content, message):
    offer(server, monkeypatch, "cifar100", {ARCHIVE: content})
    root = tmp_path / "data"
    with pytest.raises(
        InputError, match=rf"{ARCHIVE} cannot be unpacked: .*{message}|{ARCHIVE} {message}"
    ):
        fetch_set("cifar100", root, server.url)
    assert leftovers(tmp_path) == []


def test_what_the_user_has_is_not_overwritten(cifar, tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "train.bin").write_bytes(RECORDS[:5000])
    with pytest.raises(
        InputError, match=rf"{FOLDER} is there, but not as the official {ARCHIVE} has it\."
    ):
        fetch_set("cifar100", tmp_path, cifar.url)
    assert leftovers(tmp_path) == [f"{FOLDER}/train.bin"]
    (tmp_path / FOLDER).rename(tmp_path / "old")
    fetch_set("cifar100", tmp_path, cifar.url)
    assert (tmp_path / "old" / "train.bin").read_bytes() == RECORDS[:5000]


def test_a_folder_that_cannot_be_written(cifar, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"file.* cannot be written to: .*Not a directory"):
        fetch_set("cifar100", tmp_path / "file", cifar.url)


def test_a_full_disk_is_reported_and_leaves_nothing(cifar, tmp_path, monkeypatch):
    def full(self, chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch.LimitedFile, "write", full)
    message = rf"{tmp_path} cannot be written to: No space left on device\. Free some space"
    with pytest.raises(InputError, match=message):
        fetch_set("cifar100", tmp_path, cifar.url)
    assert list(tmp_path.iterdir()) == []


def idx(array):
    return gzip.compress(
        bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    )


def mnist_files():
    images, labels = np.zeros((3, 28, 28), np.uint8), np.arange(3, dtype=np.uint8)
    kinds = {"images-idx3-ubyte.gz": images, "labels-idx1-ubyte.gz": labels}
    return {
        f"{part}-{kind}": idx(array) for part in ("train", "t10k") for kind, array in kinds.items()
    }


def test_single_files_are_fetched_only_where_missing(server, monkeypatch, tmp_path):
    files = mnist_files()
    offer(server, monkeypatch, "mnist", files)
    fetch_set("mnist", tmp_path, server.url)
    assert leftovers(tmp_path) == sorted(f"mnist/{name}" for name in files)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    server.seen.clear()
    assert fetch_set("mnist", tmp_path, server.url) == f"mnist is fetched: {tmp_path / 'mnist'}"
    assert server.seen == [("/sets/t10k-labels-idx1-ubyte.gz", None)]
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(
        InputError, match=r"mnist/t10k-labels-idx1-ubyte\.gz is there, but not as the official"
    ):
        fetch_set("mnist", tmp_path, server.url)


def test_the_set_without_a_download_says_what_to_do(server, tmp_path):
    message = (
        rf"cannot be fetched by this command.* https://image-net.*login.*{tmp_path}/imagenet32"
    )
    with pytest.raises(InputError, match=message):
        fetch_set("imagenet32", tmp_path, server.url)
    (tmp_path / "imagenet32").mkdir()
    for name in ("train_data_batch_1.npz", "val_data.npz"):
        (tmp_path / "imagenet32" / name).touch()
    assert fetch_set("imagenet32", tmp_path).startswith("imagenet32 is already there")


def test_missing_sets_name_files_page_and_command(tmp_path, monkeypatch):
    monkeypatch.delenv("CANDIDLY_DATA", raising=False)
    for name, chosen in SETS.items():
        with pytest.raises(InputError) as caught:
            load_set(name, "train", tmp_path)
        wanted = [*chosen.parts["train"], str(tmp_path / chosen.folders[0]), chosen.page]
        if chosen.downloads:
            wanted.append(f"`candidly data fetch {name} --data-dir {tmp_path}`")
        assert all(text in str(caught.value) for text in wanted), name
    with pytest.raises(
        InputError,
        match=r"no data folder is named: pass --data-dir DIR .* or set CANDIDLY_DATA=DIR",
    ):
        load_set("mnist", "train")
    with pytest.raises(InputError, match=r"image set 'minst' is unknown. Did you mean 'mnist'"):
        load_set("minst", "train", tmp_path)
    with pytest.raises(InputError, match=r"mnist, part='val': expected 'train' or 'test'"):
        load_set("mnist", "val", tmp_path)


@pytest.mark.parametrize("folder", SETS["mnist"].folders)
def test_sets_are_found_in_each_of_their_folders(tmp_path, monkeypatch, folder):
    (tmp_path / folder).mkdir(parents=True)
    for name, content in mnist_files().items():
        if name.startswith("train"):
            (tmp_path / folder / name.removesuffix(".gz")).write_bytes(gzip.decompress(content))
    monkeypatch.setenv("CANDIDLY_DATA", str(tmp_path))
    assert load_set("mnist", "train")[0].shape == (3, 28, 28)
    found = {row["name"]: row["found"] for row in survey()}
    assert found.pop("mnist") == {"train": str(tmp_path / folder)}
    assert not any(found.values())


def test_the_catalogue_is_sound():
    for name, chosen in SETS.items():
        assert bool(chosen.downloads) != bool(chosen.advice), name
        for item in chosen.downloads:
            assert re.fullmatch("[0-9a-f]{64}", item.sha256), item
            assert set(item.parts) <= set(chosen.parts)
            assert 4_000 < item.size < 200_000_000


TINY_SHA = hashlib.sha256(WHOLE).hexdigest()
TINY = f"""
from dataclasses import replace
from runpy import run_module
from candidly.bench.sources.catalogue import SETS
chosen = SETS["cifar100"]
tiny = replace(chosen.downloads[0], sha256="{TINY_SHA}", size={len(WHOLE)})
SETS["cifar100"] = replace(chosen, downloads=(tiny,))
run_module("candidly", run_name="__main__", alter_sys=True)
"""  # the command as it is, except for the checksum and size of the tiny archive


def command(*arguments, tiny=False):
    return [
        sys.executable,
        *(["-c", TINY] if tiny else ["-m", "candidly"]),
        "data",
        *map(str, arguments),
    ]


def run(*arguments, code=0, tiny=False):
    done = subprocess.run(
        command(*arguments, tiny=tiny), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_command_fetches_quietly_when_piped(cifar, tmp_path):
    for answer in ("fetched", "already there"):
        done = run("fetch", "cifar100", "--data-dir", tmp_path, "--mirror", cifar.url, tiny=True)
        assert done.stdout == f"cifar100 is {answer}: {tmp_path / FOLDER}\n"
        assert done.stderr == ""


def test_the_command_tells_failures_in_a_sentence(cifar, tmp_path):
    for mirror, message in (
        (cifar.url, "expected sha256:58a81ae1"),
        (cifar.url + "/no", "answers 404 Not Found"),
    ):
        done = run("fetch", "cifar100", "--data-dir", tmp_path, "--mirror", mirror, code=2)
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert (
        "image set 'cifar' is unknown"
        in run("fetch", "cifar", "--data-dir", tmp_path, code=2).stderr
    )
    assert "set CANDIDLY_DATA=DIR" in run("fetch", "cifar100", code=2).stderr
    assert "needs a login" in run("fetch", "imagenet32", "--data-dir", tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sign", "code", "expected"),
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGINT, 130, "candidly: stopped; the same command starts it again.\n"),
    ],
)
def test_a_stopped_command_starts_again(cifar, tmp_path, sign, code, expected):
    cifar.cuts = [None]
    arguments = ("fetch", "cifar100", "--data-dir", tmp_path, "--mirror", cifar.url)
    process = subprocess.Popen(command(*arguments, tiny=True), stderr=subprocess.PIPE, text=True)
    staging = tmp_path / ".fetch-cifar100"
    deadline = time.monotonic() + 20
    while (
        not any(path.stat().st_size for path in staging.glob("*")) and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.send_signal(sign)
    message = ended(process, 20)[1]
    assert process.returncode == code, message
    assert message == expected
    assert staging.exists() == (sign == signal.SIGKILL)
    run(*arguments, tiny=True)
    assert leftovers(tmp_path) == INSTALLED


def test_progress_on_a_terminal(cifar, tmp_path):
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    arguments = ("fetch", "cifar100", "--data-dir", tmp_path, "--mirror", cifar.url)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run(
        command(*arguments, tiny=True),
        stderr=side,
        stdout=subprocess.DEVNULL,
        env=environment,
        check=True,
    )
    os.close(side)
    shown = os.read(main, 100_000).decode()
    os.close(main)
    assert ARCHIVE in shown
    assert "kB" in shown
    assert "00:00" in shown


def test_the_list_of_sets(cifar, tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "train.bin").write_bytes(RECORDS)
    text = run("list", "--data-dir", tmp_path).stdout
    assert text.startswith(f"Found in {tmp_path}:\n")
    rows = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert rows.keys() == SETS.keys()
    assert re.search(r"cifar100 +train +CIFAR-100", rows["cifar100"])
    assert re.search(r"svhn +- +Street", rows["svhn"])
    assert all(chosen.page in rows[name] for name, chosen in SETS.items())
    found = json.loads(run("list", "--json", "--data-dir", tmp_path).stdout)
    assert [row["found"] for row in found if row["found"]] == [{"train": str(tmp_path / FOLDER)}]
    assert "no data folder is named" in run("list").stdout


def test_every_data_command_has_examples_in_its_help():
    for name in ("fetch", "list"):
        assert f"candidly data {name}" in run(name, "--help").stdout
