"""Fetching against a real server on this machine, which cuts, stalls, lies and changes its mind."""

import base64
import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest

from gemrl.data import fetch as fetching
from gemrl.data.fetch import checks, download, fetch, fetch_file, web
from gemrl.data.fetch.download import locked, megabytes_bar
from gemrl.data.readers import load_dataset
from gemrl.data.storage import genuine_path
from gemrl.data.tasks import TASKS, task_named
from gemrl.errors import DataError

ROWS = 3000
TASK = replace(task_named("maze2d-umaze-v1"), published_steps=ROWS)
"""A task whose published file is small."""
PATH = "/maze2d/maze2d-umaze-sparse-v1.hdf5"
FAST = {"timeout": 60.0, "retries": 1}
"""The timeout is for a busy machine: the tests of stalls have a short one."""


def hdf5(seed=0, rows=ROWS, obs_dim=4, drop=(), edit=lambda file: None):
    rng = np.random.default_rng(seed)
    arrays = {
        "observations": rng.standard_normal((rows, obs_dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.random(rows).astype(np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.arange(rows) % 100 == 99,
    }
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name in arrays.keys() - set(drop):
            file.create_dataset(name, data=arrays[name])
        edit(file)
    return memory.getvalue()


WHOLE = hdf5()
OTHER = hdf5(seed=1)
assert len(WHOLE) == len(OTHER)
HALF = len(WHOLE) // 2


def sha(content):
    return hashlib.sha256(content).hexdigest()


class Server:
    """Serves `files`; what `plan` holds for a path is done first, one entry for each request."""

    def __init__(self):
        self.files = {}
        self.plan = {}
        self.seen = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, dict(self.headers)))
                steps = outer.plan.get(self.path)
                with contextlib.suppress(ConnectionError):  # The client may hang up.
                    (steps.pop(0) if steps else serve())(self, outer)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def ranges(self):
        return [headers.get("Range") for _, headers in self.seen]

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


def serve(content=None, cut=None, stall=False, ranged=True, **headers):
    """An answer with the file: whole or from the byte asked for, cut or stalled after `cut` bytes.

    A header given as none is left out.
    """

    def answer(handler, server):
        body = server.files.get(handler.path) if content is None else content
        if body is None:
            return handler.send_error(404)
        etag = headers.get("ETag", f'"{sha(body)[:16]}"')
        start, asked = 0, handler.headers.get("Range")
        if ranged and asked and handler.headers.get("If-Range") == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        handler.send_response(206 if start else 200)
        sent = {"Content-Length": str(len(body) - start), "ETag": etag}
        if start:
            sent["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        for name, value in (sent | headers).items():
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[start:cut])
        if stall:
            handler.wfile.flush()
            server.released.wait(60)

    return answer


def status(code, **headers):
    def answer(handler, server):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetching, "BACKOFF", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("GEMRL_MIRROR", raising=False)
    server = Server()
    server.files[PATH] = WHOLE
    yield server
    server.close()


@pytest.fixture
def other(server):
    """A second server."""
    other = Server()
    other.files[PATH] = WHOLE
    yield other
    other.close()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "data" / "file.hdf5"


@pytest.fixture
def said(monkeypatch):
    lines = []
    for module in (fetching, download):
        monkeypatch.setattr(module, "say", lines.append)
    return lines


def get(out, *servers, **kwargs):
    return fetch_file(
        [f"{server.url}{PATH}" for server in servers],
        out,
        **({"signature": fetching.HDF5} | FAST | kwargs),
    )


def fails(out, *servers, **kwargs):
    """The error's text; the file never has its name afterwards."""
    with pytest.raises(DataError) as caught:
        get(out, *servers, **kwargs)
    assert not out.exists()
    return str(caught.value)


def part(out):
    return out.with_name(f".{out.name}.part")


def only_whole(out):
    assert out.read_bytes() == WHOLE
    left = {path.name for path in out.parent.iterdir()}
    assert left == {out.name, f"{out.name}.json", f".{out.name}.lock"}


# Whole downloads and their records


def test_whole_file_and_its_record(server, out):
    seen = []
    record = get(out, server, report=lambda done, total: seen.append((done, total)))
    only_whole(out)
    assert seen[-1] == (len(WHOLE), len(WHOLE))
    written = json.loads(out.with_name("file.hdf5.json").read_text())
    assert written.pop("date").startswith("20")
    assert written == {
        "url": f"{server.url}{PATH}",
        "size": len(WHOLE),
        "sha256": sha(WHOLE),
        "verified": "size and structure; no published checksum: trust on first use",
    }
    assert record.sha256 == sha(WHOLE)


def test_trust_on_first_use_is_said_and_holds_later(server, out, said):
    get(out, server)
    assert any("trust on first use" in line and sha(WHOLE) in line for line in said)
    out.unlink()
    server.files[PATH] = OTHER
    message = fails(out, server)
    assert sha(WHOLE) in message
    assert "file.hdf5.json (delete that to allow it)" in message
    assert not part(out).exists()
    server.files[PATH] = WHOLE
    assert "an earlier fetch" in get(out, server).verified


def test_second_fetch_does_nothing(server, out, said):
    first = get(out, server)
    assert get(out, server) == first
    assert len(server.seen) == 1
    assert "already there and matches its record" in said[-1]


def test_file_that_no_longer_matches_its_record_is_moved_aside(server, out, said):
    get(out, server)
    out.write_bytes(WHOLE[:HALF])
    get(out, server)
    assert out.read_bytes() == WHOLE
    assert out.with_name("file.hdf5.differs").read_bytes() == WHOLE[:HALF]


@pytest.mark.parametrize("given", [None, sha(WHOLE)], ids=["unsaid", "said"])
def test_file_that_no_longer_matches_its_record_stays_until_another_is_there(server, out, given):
    get(out, server)
    out.write_bytes(WHOLE[:HALF])
    server.plan[PATH] = [serve(cut=HALF), status(404)]
    with pytest.raises(DataError, match="HTTP 404"):
        get(out, server, sha256=given)
    assert out.read_bytes() == WHOLE[:HALF]
    assert not out.with_name("file.hdf5.differs").exists()
    get(out, server, sha256=given)
    assert out.read_bytes() == WHOLE
    assert out.with_name("file.hdf5.differs").read_bytes() == WHOLE[:HALF]


@pytest.mark.parametrize("recorded", [True, False])
def test_mistyped_checksum_leaves_a_good_file_in_service(server, out, recorded):
    get(out, server)
    record = out.with_name("file.hdf5.json")
    if not recorded:
        record.unlink()
    wrong = sha(b"mistyped")
    with pytest.raises(DataError) as caught:
        get(out, server, sha256=wrong)
    assert sha(WHOLE) in str(caught.value)
    assert wrong in str(caught.value)
    assert out.read_bytes() == WHOLE
    assert record.exists() == recorded
    assert len(server.seen) == 1
    assert get(out, server, sha256=sha(WHOLE)).sha256 == sha(WHOLE)


def test_file_put_there_by_hand_is_kept_and_recorded(server, out):
    out.parent.mkdir()
    out.write_bytes(WHOLE)
    record = get(out, server)
    assert (record.url, record.sha256) == (None, sha(WHOLE))
    assert "before any fetch" in record.verified
    assert not server.seen


def test_wrong_file_put_there_by_hand_is_refused(server, out):
    out.parent.mkdir()
    out.write_bytes(b"mine")
    with pytest.raises(DataError, match="already there, but it is odd: move it away"):
        get(out, server, check=lambda path: "it is odd")
    assert out.read_bytes() == b"mine"


def test_broken_record_is_an_error(server, out):
    out.parent.mkdir()
    out.with_name("file.hdf5.json").write_text("{")
    assert "not a readable record" in fails(out, server)


def test_final_name_is_never_given_to_a_partial_file(server, out):
    def report(done, total):
        assert not out.exists()
        assert part(out).stat().st_size == done

    server.plan[PATH] = [serve(cut=HALF), serve(cut=HALF + 100)]
    get(out, server, report=report)
    only_whole(out)


# Resuming


def test_truncated_download_goes_on_from_the_same_byte(server, out):
    server.plan[PATH] = [serve(cut=HALF)]
    get(out, server)
    only_whole(out)
    assert server.ranges() == [None, f"bytes={HALF}-"]
    assert server.seen[1][1]["If-Range"] == f'"{sha(WHOLE)[:16]}"'


def test_last_modified_serves_where_there_is_no_strong_etag(server, out):
    date = "Mon, 16 Nov 2026 00:00:00 GMT"

    def dated(handler, server):
        assert handler.headers["If-Range"] == date
        del handler.headers["If-Range"]
        handler.headers["If-Range"] = 'W/"weak"'
        serve(ETag='W/"weak"', **{"Last-Modified": date})(handler, server)

    server.plan[PATH] = [serve(cut=HALF, ETag='W/"weak"', **{"Last-Modified": date}), dated]
    get(out, server)
    only_whole(out)
    assert server.ranges() == [None, f"bytes={HALF}-"]


def test_nothing_is_resumed_without_a_validator(server, out):
    server.plan[PATH] = [serve(cut=HALF, ETag=None)]
    get(out, server)
    only_whole(out)
    assert server.ranges() == [None, None]


def test_partial_bytes_outlive_a_failed_fetch_and_are_counted(server, out):
    server.plan[PATH] = [serve(cut=HALF), status(500), status(500)]
    message = fails(out, server)
    assert f"{HALF:,} bytes are kept in {part(out)}" in message
    assert "HTTP 500" in message
    get(out, server)
    assert server.ranges()[-1] == f"bytes={HALF}-"
    only_whole(out)


def test_server_that_ignores_ranges_starts_anew(server, out):
    server.plan[PATH] = [serve(cut=HALF), serve(ranged=False)]
    get(out, server)
    only_whole(out)
    assert len(server.seen) == 2


def test_server_that_ignores_ranges_and_always_cuts_is_given_up(server, out):
    server.plan[PATH] = [serve(cut=HALF, ranged=False)] * 9
    assert "ended after" in fails(out, server)
    assert len(server.seen) == 3


def test_changed_file_starts_anew(server, out):
    server.plan[PATH] = [serve(content=OTHER, cut=HALF)]
    get(out, server)
    only_whole(out)


@pytest.mark.parametrize(
    "wrong",
    [
        {"Content-Range": f"bytes {HALF}-{len(WHOLE)}/{len(WHOLE) + 1}"},
        {"Content-Range": f"bytes {HALF - 1}-{len(WHOLE) - 1}/{len(WHOLE)}"},
        {"Content-Range": None},
    ],
)
def test_range_of_another_file_is_not_appended(server, out, wrong):
    server.plan[PATH] = [serve(cut=HALF), serve(**wrong)]
    get(out, server)
    only_whole(out)
    assert server.ranges() == [None, f"bytes={HALF}-", None]


def test_range_with_another_etag_is_not_appended(server, out):
    def lying(handler, server):
        handler.headers.replace_header("If-Range", '"new"')
        serve(content=OTHER, ETag='"new"')(handler, server)

    server.plan[PATH] = [serve(cut=HALF), lying]
    get(out, server)
    only_whole(out)


def test_range_of_another_day_is_not_appended(server, out):
    """A server that looks at no If-Range still dates what it sends."""
    old, new = ({"Last-Modified": f"Mon, {day} Nov 2026 00:00:00 GMT"} for day in (16, 17))
    answers = [serve(content=OTHER, cut=HALF, ETag=None, **old), serve(ETag=None, **new)]

    def heedless(handler, server):
        handler.headers.replace_header("If-Range", None)
        serve(ETag=None, **new)(handler, server)

    server.plan[PATH] = [answers[0], heedless, answers[1]]
    get(out, server)
    assert server.ranges() == [None, f"bytes={HALF}-", None]
    only_whole(out)


def test_range_past_the_end_starts_anew(server, out):
    server.plan[PATH] = [serve(cut=HALF), status(416)]
    get(out, server)
    only_whole(out)


def test_mirror_with_the_same_version_goes_on_and_with_another_starts_anew(server, other, out):
    server.plan[PATH] = [serve(cut=HALF), status(404)]
    get(out, server, other)
    assert other.ranges() == [f"bytes={HALF}-"]
    only_whole(out)
    shutil.rmtree(out.parent)
    server.plan[PATH] = [serve(content=OTHER, cut=HALF), status(404)]
    get(out, server, other)
    only_whole(out)


@pytest.mark.parametrize(
    "notes", ["", "{", "[]", '{"url": 1}', '{"url": 1, "validator": "", "total": ""}', None]
)
def test_partial_file_without_its_notes_is_not_trusted(server, out, notes):
    out.parent.mkdir()
    part(out).write_bytes(OTHER[:HALF])
    if notes is not None:
        part(out).with_name(part(out).name + ".json").write_text(notes)
    get(out, server)
    assert server.ranges() == [None]
    only_whole(out)


@pytest.mark.parametrize("extra", [b"", b"x"])
def test_partial_file_as_long_as_the_whole_or_longer(server, out, extra):
    server.plan[PATH] = [serve(cut=HALF), status(404)]
    fails(out, server)
    part(out).write_bytes(WHOLE + extra)
    get(out, server)
    assert len(server.seen) == (3 if extra else 2)
    only_whole(out)


def test_damaged_partial_file_is_noticed_by_its_checksum_and_fetched_anew(server, out):
    server.plan[PATH] = [serve(cut=HALF), status(404)]
    fails(out, server, sha256=sha(WHOLE))
    part(out).write_bytes(OTHER[:HALF])
    get(out, server, sha256=sha(WHOLE))
    only_whole(out)


def test_kill_during_a_download_then_resume(server, out):
    server.plan[PATH] = [serve(cut=HALF, stall=True)]
    code = "import sys; from pathlib import Path; from gemrl.data.fetch import fetch_file\n"
    code += "fetch_file([sys.argv[1]], Path(sys.argv[2]), timeout=300)"
    child = subprocess.Popen([sys.executable, "-c", code, f"{server.url}{PATH}", str(out)])
    try:
        while not (part(out).exists() and part(out).stat().st_size == HALF):
            assert child.poll() is None
            time.sleep(0.02)
        assert not out.exists()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert not out.exists()
    get(out, server)
    assert server.ranges() == [None, f"bytes={HALF}-"]
    only_whole(out)


# Stalls, errors and mirrors


def test_stall_is_retried_from_where_it_stopped(server, out):
    server.plan[PATH] = [serve(cut=HALF, stall=True)]
    get(out, server, timeout=1.0)
    assert server.ranges() == [None, f"bytes={HALF}-"]
    only_whole(out)


def test_server_that_never_answers_gives_way_to_the_next(server, other, out):
    server.plan[PATH] = [lambda handler, server: server.released.wait(60)] * 2
    assert get(out, server, other, timeout=1.0).url == f"{other.url}{PATH}"
    assert len(server.seen) == 2


@pytest.mark.parametrize(("code", "requests"), [(404, 1), (403, 1), (410, 1), (500, 2), (503, 2)])
def test_next_mirror_after_an_error(server, other, out, code, requests):
    server.plan[PATH] = [status(code)] * 9
    assert get(out, server, other).url == f"{other.url}{PATH}"
    assert len(server.seen) == requests
    only_whole(out)


def test_error_names_every_place_and_what_happened_there(server, other, out):
    server.plan[PATH] = [status(404)]
    other.plan[PATH] = [status(403)]
    message = fails(out, server, other, advice="Do this")
    assert f"{server.url}{PATH}: HTTP 404" in message
    assert f"{other.url}{PATH}: HTTP 403" in message
    assert message.endswith(". Do this")
    assert "\n" not in message
    assert "kept" not in message


def test_connection_closed_without_an_answer(server, other, out):
    server.plan[PATH] = [lambda handler, server: handler.connection.close()] * 9
    assert get(out, server, other).url == f"{other.url}{PATH}"


def test_web_page_in_place_of_the_file(server, other, out):
    page = b"<html>Sign in to the network</html>"
    server.plan[PATH] = [serve(content=page, **{"Content-Type": "text/html; charset=utf-8"})]
    other.plan[PATH] = [serve(content=page, **{"Content-Type": "application/octet-stream"})]
    message = fails(out, server, other)
    assert "sent a web page" in message
    assert "begins differently" in message
    assert not part(out).exists()


def test_web_page_does_not_cost_the_bytes_at_hand(server, out):
    server.plan[PATH] = [serve(cut=HALF), serve(content=b"<html>", **{"Content-Type": "text/html"})]
    fails(out, server)
    assert part(out).read_bytes() == WHOLE[:HALF]


def test_no_network(out, server):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        urls = [
            f"http://127.0.0.1:{unused.getsockname()[1]}/file",
            "https://gemrl.invalid/file",
        ]
        with pytest.raises(DataError) as caught:
            fetch_file(urls, out, **FAST)
    message = str(caught.value)
    assert "no server can be reached from here" in message
    assert "connection refused" in message
    assert "no address is known for gemrl.invalid" in message


@pytest.mark.parametrize(
    "url", ["http://[", "http://127.0.0.1:x/", "http://127.0.0.1/a b", "http:"]
)
def test_url_that_is_none(server, out, url):
    with pytest.raises(DataError, match="cannot fetch"):
        fetch_file([url], out, **FAST)


# Verification


@pytest.mark.parametrize("plan", [[], [serve(cut=HALF)]])
def test_wrong_checksum(server, out, plan):
    server.plan[PATH] = plan
    message = fails(out, server, sha256=sha(OTHER))
    assert f"sent a file of SHA-256 {sha(WHOLE)}, but the SHA-256 given is {sha(OTHER)}" in message
    assert not part(out).exists()
    assert not out.with_name("file.hdf5.json").exists()


def test_mirror_with_the_right_checksum_is_found(server, other, out):
    server.files[PATH] = OTHER
    record = get(out, server, other, sha256=sha(WHOLE))
    assert (record.url, record.verified) == (f"{other.url}{PATH}", "the SHA-256 given")


def b64(algorithm, content):
    return base64.b64encode(hashlib.new(algorithm, content).digest()).decode()


@pytest.mark.parametrize(
    ("header", "form", "algorithm"),
    [
        ("Repr-Digest", "sha-256=:{}:", "sha256"),
        ("Digest", "SHA-256={}", "sha256"),
        ("Content-MD5", "{}", "md5"),
        ("x-goog-hash", "crc32c=AAAAAA==,md5={}", "md5"),
    ],
)
def test_checksum_in_a_header(server, other, out, header, form, algorithm):
    server.plan[PATH] = [serve(**{header: form.format(b64(algorithm, OTHER))})]
    other.plan[PATH] = [serve(cut=HALF, **{header: form.format(b64(algorithm, WHOLE))})]
    record = get(out, server, other)
    assert record.url == f"{other.url}{PATH}"
    assert record.verified.startswith(f"{algorithm} in the server's header")
    only_whole(out)


def test_meaningless_checksum_headers_are_passed_over(server, out):
    server.plan[PATH] = [serve(Digest="sha-256=?, unixsum=30637", **{"Content-MD5": "AAAA"})]
    assert get(out, server).verified.startswith("size and structure")


def test_hugging_face_names_checksum_and_size_in_its_redirect(server, out):
    linked = {"X_Linked_Etag": f'"{sha(WHOLE)}"', "X_Linked_Size": str(len(WHOLE))}
    server.files["/store"] = WHOLE
    server.plan[PATH] = [status(302, Location="/store", **linked)] * 2
    server.plan["/store"] = [serve(cut=HALF)]
    assert get(out, server).verified.startswith("sha256 in the server's header")
    assert server.ranges()[2:] == [f"bytes={HALF}-"] * 2
    only_whole(out)


def test_hugging_face_checksum_that_differs_is_refused_before_the_download(server, out):
    server.files["/store"] = OTHER
    linked = {"X_Linked_Etag": f'"{sha(OTHER)}"', "X_Linked_Size": str(len(OTHER))}
    server.plan[PATH] = [status(302, Location="/store", **linked)]
    assert f"has a file of SHA-256 {sha(OTHER)}" in fails(out, server, sha256=sha(WHOLE))
    assert not part(out).exists()


@pytest.mark.parametrize("size", [len(WHOLE) - 1, len(WHOLE) + 1])
def test_size_that_differs(server, out, size):
    assert f"{len(WHOLE)}" in fails(out, server, size=size)
    linked = {"X_Linked_Etag": sha(WHOLE), "X_Linked_Size": str(size)}
    server.files["/store"] = WHOLE
    server.plan[PATH] = [status(302, Location="/store", **linked)]
    assert "size is told as" in fails(out, server)


def test_file_of_unknown_size_needs_a_checksum(server, out):
    server.plan[PATH] = [serve(**{"Content-Length": None}) for _ in range(9)]
    assert "does not say how large" in fails(out, server)
    get(out, server, sha256=sha(WHOLE))
    only_whole(out)


def test_cut_file_of_unknown_size_is_noticed(server, out):
    server.plan[PATH] = [serve(cut=HALF, **{"Content-Length": None})]
    assert "sent a file of SHA-256" in fails(out, server, sha256=sha(WHOLE))


def test_encoded_file_is_refused(server, out):
    server.plan[PATH] = [serve(**{"Content-Encoding": "gzip"})]
    assert "an encoding" in fails(out, server)
    assert server.seen[0][1]["Accept-Encoding"] == "identity"


# Redirects


def test_redirects_over_several_hops(server, other, out):
    server.plan[PATH] = [status(301, Location="/a")]
    server.plan["/a"] = [status(307, Location="b")]
    server.plan["/b"] = [status(302, Location=f"{other.url}{PATH}")]
    assert get(out, server).url == f"{server.url}{PATH}"
    only_whole(out)


def test_redirects_without_end(server, out):
    server.plan[PATH] = [status(302, Location="/a")]
    server.plan["/a"] = [status(302, Location=PATH)]
    assert "redirects in a loop" in fails(out, server)
    assert len(server.seen) == 2
    for hop in range(20):
        server.plan[f"/{hop}"] = [status(302, Location=f"/{hop + 1}")]
    server.plan[PATH] = [status(302, Location="/0")]
    assert f"more than {web.HOPS} times" in fails(out, server)
    server.plan[PATH] = [status(302)]
    assert "redirects in a loop" in fails(out, server)


def test_redirect_off_the_web(server, out, tmp_path):
    (tmp_path / "secret").write_bytes(WHOLE)
    server.plan[PATH] = [status(302, Location=f"file://{tmp_path}/secret")]
    assert "which is not on the web" in fails(out, server)
    server.plan[PATH] = [status(302, Location="http://[")]
    assert "which is not a valid URL" in fails(out, server)


def test_redirect_from_https_to_http_needs_a_checksum(server, out, monkeypatch):
    real = web.build_opener

    def opener(*handlers):
        """Stands in for TLS, which the local server does not speak."""
        plain = real(*handlers)

        class Opener:
            def open(self, request, timeout):
                request.full_url = request.full_url.replace("https://", "http://")
                return plain.open(request, timeout=timeout)

        return Opener()

    monkeypatch.setattr(web, "build_opener", opener)
    secure = server.url.replace("http:", "https:")
    server.files["/plain"] = WHOLE
    server.plan["/secure"] = [status(302, Location=f"{server.url}/plain") for _ in range(2)]
    with pytest.raises(DataError, match="redirects from https to http"):
        fetch_file([f"{secure}/secure"], out, **FAST)
    fetch_file([f"{secure}/secure"], out, sha256=sha(WHOLE), **FAST)
    only_whole(out)


# The disk, and other processes


def test_disk_without_room(server, out, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = fails(out, server)
    assert f"{len(WHOLE):,} bytes are missing and 1,000 are free" in message


def test_disk_that_fills_up_keeps_the_partial_file(server, out):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, hard))
    try:
        message = fails(out, server)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"cannot write {part(out)}" in message
    assert f"{HALF:,} bytes are kept" in message
    get(out, server)
    assert server.ranges()[-1] == f"bytes={HALF}-"
    only_whole(out)


def test_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        get(tmp_path / "file" / "out.hdf5", server)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="it is a folder"):
        get(tmp_path / "folder", server)


def test_second_process_waits_and_finds_the_file(server, out, monkeypatch):
    waiting, lines = threading.Event(), []

    def say(line):
        lines.append(line)
        if "waiting" in line:
            waiting.set()

    monkeypatch.setattr(download, "say", say)
    monkeypatch.setattr(fetching, "say", say)
    with locked(out):
        thread = threading.Thread(target=get, args=(out, server))
        thread.start()
        assert waiting.wait(60)
        assert not server.seen
    thread.join()
    only_whole(out)


# Tasks


def fetch_task(server, **kwargs):
    return fetch(TASK, mirrors=[f"{server.url}/"], **(FAST | kwargs))


def test_task_is_fetched_to_its_place_and_loads(server):
    path = fetch_task(server)
    assert path == genuine_path(TASK.name)
    assert load_dataset(TASK.name).origin == "genuine"


def test_mirrors_by_file_and_by_variable(server, other, monkeypatch):
    monkeypatch.setenv("GEMRL_MIRROR", f"{other.url}/")
    server.files["/mine"] = WHOLE
    fetch(TASK, mirrors=[f"{server.url}/gone", f"{server.url}/mine"], **FAST)
    assert [path for path, _ in server.seen] == ["/gone", "/mine"]
    assert not other.seen
    shutil.rmtree(genuine_path(TASK.name).parent)
    fetch(TASK, **FAST)
    assert [path for path, _ in other.seen] == [PATH]


@pytest.mark.parametrize("mirror", ["file:///etc/", "ftp://a/", "example.org", "http://"])
def test_mirror_that_is_not_on_the_web(mirror):
    with pytest.raises(DataError, match="must begin with http"):
        fetch(TASK, mirrors=[mirror])


@pytest.mark.parametrize("wrong", ["", "abc", "g" * 64])
def test_checksum_that_is_none(wrong):
    with pytest.raises(DataError, match="64 hexadecimal digits"):
        fetch(TASK, sha256=wrong)


@pytest.mark.parametrize("source", ["d4rl", "minari"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"timeout": -3.0}, "timeout = -3: must be above 0 and at most 86,400 seconds"),
        ({"timeout": 0.0}, "timeout = 0: must be above 0"),
        ({"timeout": float("nan")}, "timeout = nan: must be above 0"),
        ({"timeout": float("inf")}, "timeout = inf: must be above 0"),
        ({"retries": -1}, "retries = -1: must be at least 0"),
    ],
)
def test_patience_that_is_none_is_refused_at_once(server, source, wrong, words):
    with pytest.raises(DataError, match=words):
        fetch_task(server, source=source, **wrong)
    assert not server.seen
    assert not genuine_path(TASK.name).parent.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (hdf5(drop=["rewards"]), "no array rewards"),
        (hdf5(obs_dim=5), r"its observations have shape \(3000, 5\)"),
        (hdf5(rows=0), "the dataset is empty"),
        (WHOLE[:HALF], "not a readable HDF5 file"),
    ],
)
def test_file_that_is_not_the_tasks(server, content, reason, monkeypatch):
    server.files[PATH] = content
    nowhere(monkeypatch)
    with pytest.raises(DataError, match=reason):
        fetch_task(server)
    assert not genuine_path(TASK.name).exists()


@pytest.mark.parametrize("origin", ["regenerated", "collected"])
def test_file_that_gemrl_wrote_is_not_the_published_one(server, origin, monkeypatch):
    nowhere(monkeypatch)
    server.files[PATH] = hdf5(edit=lambda file: file.attrs.update(gemrl_origin=origin))
    with pytest.raises(DataError, match=f"gemrl_origin is {origin}: gemrl wrote it"):
        fetch_task(server)
    genuine_path(TASK.name).write_bytes(server.files[PATH])
    with pytest.raises(DataError, match="already there, but its gemrl_origin"):
        fetch_task(server)


@pytest.mark.parametrize("rows", [ROWS * 102 // 100 + 1, ROWS * 98 // 100 - 1, ROWS // 10])
def test_file_of_another_size_than_the_published_one_is_refused(server, rows, monkeypatch):
    nowhere(monkeypatch)
    server.files[PATH] = hdf5(rows=rows)
    words = f"it has {rows:,} rows where the published dataset of {TASK.name} has about 3,000"
    with pytest.raises(DataError, match=words):
        fetch_task(server)
    assert not genuine_path(TASK.name).exists()


@pytest.mark.parametrize("rows", [ROWS * 102 // 100, ROWS * 98 // 100])
def test_published_sizes_are_rounded(server, rows):
    server.files[PATH] = hdf5(rows=rows)
    fetch_task(server)


# Hostile files


def claims(rows):
    """A file of a few kilobytes, of whose rows none was written."""
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, shape in {"observations": (4,), "actions": (2,), "rewards": ()}.items():
            file.create_dataset(name, (rows, *shape), "f4", chunks=(1000, *shape))
        file.create_dataset("terminals", (rows,), bool, chunks=(1000,))
    return memory.getvalue()


def soft_link(file):
    file["elsewhere"] = file["rewards"][()]
    del file["rewards"]
    file["rewards"] = h5py.SoftLink("/elsewhere")


def external_link(file):
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink("/etc/other.hdf5", "/rewards")


def external_storage(file):
    del file["rewards"]
    file.create_dataset("rewards", (ROWS,), "f4", external=[("/etc/hostname", 0, 4 * ROWS)])


def text(file):
    del file["rewards"]
    file["rewards"] = np.array([b"text"] * ROWS)


def broken_chunk(file):
    del file["rewards"]
    array = file.create_dataset("rewards", (ROWS,), "f4", chunks=(ROWS,), compression="gzip")
    array.id.write_direct_chunk((0,), b"not gzip")


HOSTILE = [
    (claims(150_000_000), 150_000_000, "holds no data|cannot all have been written"),
    (claims(10**13), 10**13, "cannot all have been written"),
    (claims(ROWS), ROWS, "holds no data: an interrupted writer"),
    (hdf5(edit=soft_link), ROWS, "rewards is a link"),
    (hdf5(edit=external_link), ROWS, "rewards is a link"),
    (hdf5(edit=external_storage), ROWS, "rewards is kept in other files"),
    (hdf5(edit=text), ROWS, "rewards has type"),
    (hdf5(edit=broken_chunk), ROWS, "not a readable HDF5 file"),
]


@pytest.mark.parametrize(("content", "rows", "reason"), HOSTILE)
def test_hostile_file_is_dropped_and_the_next_mirror_tried(
    server, other, content, rows, reason, monkeypatch
):
    """Even where the task has as many rows as the file claims."""
    nowhere(monkeypatch)
    server.files[PATH] = content
    path = genuine_path(TASK.name)
    with limited_memory(), pytest.raises(DataError, match=reason):
        fetch(replace(TASK, published_steps=rows), mirrors=[f"{server.url}/"], **FAST)
    assert not path.exists()
    assert not part(path).exists()
    with limited_memory():
        fetch(TASK, mirrors=[f"{server.url}/", f"{other.url}/"], **FAST)
    only_whole(path)


@contextlib.contextmanager
def limited_memory():
    """Room for half a gibibyte more than is in use, where that can be told."""
    if not sys.platform.startswith("linux"):
        yield
        return
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**29, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("retries", [0, 1])
def test_whole_part_that_an_earlier_crash_left_does_not_spoil_a_good_mirror(
    server, other, out, retries
):
    """Whatever the check stumbles over."""
    server.files[PATH] = OTHER

    def check(path):
        if path.read_bytes() == OTHER:
            raise MemoryError("10^13 rows")

    def crash(path):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(out, server, check=crash)
    assert part(out).read_bytes() == OTHER
    assert get(out, server, other, check=check, retries=retries).url == f"{other.url}{PATH}"
    only_whole(out)


def nowhere(monkeypatch):
    """No name of the outside world resolves, so that no test reaches it."""
    real = socket.getaddrinfo

    def resolve(host, *args, **kwargs):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("source", ["d4rl", "minari"])
def test_without_network_the_error_says_what_to_do(source, monkeypatch, tmp_path):
    nowhere(monkeypatch)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(DataError) as caught:
        fetch(TASK, source=source, **FAST)
    message = str(caught.value)
    assert "no server can be reached from here (no address is known for" in message
    assert f"`gemrl data make {TASK.name}`" in message
    assert "--mirror" in message
    assert "\n" not in message
    if source == "d4rl":
        assert str(genuine_path(TASK.name)) in message


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_places_of_every_task(task, monkeypatch):
    asked = {}
    monkeypatch.setattr(fetching, "fetch_file", lambda urls, out, **_: asked.update({out: urls}))
    urls = asked[fetch(task)]
    assert urls[0].startswith("https://rail.eecs.berkeley.edu/datasets/offline_rl/")
    assert urls[-1] == urls[0].replace("https:", "http:")
    copy = [url for url in urls if "huggingface" in url]
    assert bool(copy) == (task.suite != "maze2d")
    assert all(url.endswith("/main/" + urls[0].rpartition("/")[2]) for url in copy)


# Minari


def minari_files(server, episodes=3, told=None, edit=lambda file: None):
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for number in range(episodes):
            group = file.create_group(f"episode_{number}")
            for name in checks.EPISODE:
                group.create_dataset(name, data=np.zeros(5))
        edit(file)
    folder = f"/{TASK.minari}/data"
    metadata = {"total_episodes": told or episodes, "data_format": "hdf5"}
    server.files[f"{folder}/metadata.json"] = json.dumps(metadata).encode()
    server.files[f"{folder}/main_data.hdf5"] = memory.getvalue()
    return folder


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    nowhere(monkeypatch)
    return tmp_path / "minari"


def test_minari_dataset_appears_whole_in_its_store(server, store):
    folder = minari_files(server)
    server.plan[f"{folder}/main_data.hdf5"] = [serve(cut=100), status(404)]
    with pytest.raises(DataError, match="100 bytes are kept"):
        fetch_task(server, source="minari")
    assert not (store / TASK.minari).exists()
    assert fetch_task(server, source="minari") == store / TASK.minari
    assert server.ranges()[-1] == "bytes=100-"
    data = store / TASK.minari / "data"
    for name in ("metadata.json", "main_data.hdf5"):
        assert (data / name).read_bytes() == server.files[f"{folder}/{name}"]
        assert json.loads((data / f"{name}.json").read_text())["url"].startswith(server.url)
    requests = len(server.seen)
    assert fetch_task(server, source="minari") == store / TASK.minari
    assert len(server.seen) == requests


def test_minari_data_that_are_not_what_the_metadata_say(server, store):
    minari_files(server, told=4)
    with pytest.raises(DataError, match="3 episodes where its metadata say 4"):
        fetch_task(server, source="minari")
    assert not (store / TASK.minari).exists()


def minari_external_link(file):
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink("/etc/other.hdf5", "/")


def minari_link_in_a_dictionary(file):
    del file["episode_1/observations"]
    file["episode_1/observations/goal"] = h5py.SoftLink("/episode_0/actions")


def minari_claim(file):
    del file["episode_1/rewards"]
    file.create_dataset("episode_1/rewards", (10**13,), "f4", chunks=(1000,))


def minari_loop(file):
    del file["episode_1/observations"]
    group = file.create_group("episode_1/observations")
    group["again"] = group


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (minari_external_link, "episode_1 is a link"),
        (minari_link_in_a_dictionary, "goal is a link"),
        (minari_claim, "cannot all have been written"),
        (minari_loop, "again is not an array"),
        (lambda file: file.__delitem__("episode_2/actions"), "episode_2 lacks actions"),
    ],
)
def test_hostile_minari_data_are_dropped(server, store, edit, reason):
    minari_files(server, edit=edit)
    with pytest.raises(DataError, match=reason):
        fetch_task(server, source="minari")
    assert not (store / TASK.minari).exists()
    assert not list(store.rglob("*.part"))


def test_minari_observations_may_be_a_dictionary(server, store):
    def edit(file):
        del file["episode_1/observations"]
        file["episode_1/observations/goal"] = np.zeros(5)

    minari_files(server, edit=edit)
    assert fetch_task(server, source="minari").is_dir()


def test_mirror_of_minari_must_be_a_folder(server, store):
    with pytest.raises(DataError, match="must end in /"):
        fetch(TASK, source="minari", mirrors=[f"{server.url}/file"])


def test_bar_shows_a_size_that_is_known_late(capsys):
    with megabytes_bar("file") as report:
        report(1, None)
        report(5_000_000, 10_000_000)
        report(10_000_000, 10_000_000)
    assert "file: 10 MB done" in capsys.readouterr().err
