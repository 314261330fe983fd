"""A Hub on loopback: the part of its interface that a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "org/name"


class FakeHub:
    """Serves one model, `ID`, at `COMMIT`, which is also ``main``. Weights are large files.

    With ``stall`` it takes requests and answers none before it is closed; with ``says`` it says the
    same to all of them.
    """

    def __init__(self, files: dict[str, bytes], stall: bool = False, says: bytes = b"") -> None:
        self.files = files
        self.says = says
        self.requests: list[str] = []
        self._closed = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                if stall:
                    hub._closed.wait()
                    self.close_connection = True
                    return
                status, headers, body = hub._answer(unquote(urlsplit(self.path).path))
                asked = self.headers.get("Range")
                if status == 200 and asked:
                    begin, _, end = asked.removeprefix("bytes=").partition("-")
                    last = min(int(end or len(body) - 1), len(body) - 1)
                    headers["Content-Range"] = f"bytes {begin}-{last}/{len(body)}"
                    status, body = 206, body[int(begin) : last + 1]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _digest(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def _answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if self.says:
            return 200, {}, self.says
        model = f"/api/models/{ID}"
        if path in (model, f"{model}/revision/main", f"{model}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, {}, json.dumps({"id": ID, "sha": COMMIT, "siblings": siblings}).encode()
        if path in (f"{model}/tree/main", f"{model}/tree/{COMMIT}"):
            return 200, {}, json.dumps([self._entry(name) for name in self.files]).encode()
        for revision in ("main", COMMIT):
            name = path.removeprefix(f"/{ID}/resolve/{revision}/")
            if name in self.files:
                headers = {"ETag": f'"{self._digest(name)}"', "X-Repo-Commit": COMMIT}
                return 200, headers, self.files[name]
        if path.startswith(f"/{ID}/resolve/"):
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if path.startswith(model + "/"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def _entry(self, name: str) -> dict[str, object]:
        size, digest = len(self.files[name]), self._digest(name)
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": digest}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 134}
        return entry
