"""A web server on this machine: plain files, and the few answers needed of a hub."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Holds files by path and models by id; `faults` maps a path's end to what goes wrong."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.models: dict[str, dict[str, bytes]] = {}
        self.redirects: dict[str, str] = {}
        self.faults: dict[str, str] = {}  # "truncate", "corrupt" or a status such as "503"
        self.requests: list[tuple[str, str]] = []
        self.commits: list[tuple[str, list[dict]]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_POST = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        body = self.body(request)
        self.requests.append((request.command, path))
        if path in self.redirects:
            self.send(request, 302, b"", {"Location": self.redirects[path]})
        elif path in self.files:
            self.send(request, 200, self.files[path])
        elif path.startswith("/api/"):
            self.api(request, path, body)
        elif match := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(request, *match.groups())
        else:
            self.send(request, 404, b"nothing here")

    def body(self, request: BaseHTTPRequestHandler) -> bytes:
        if request.headers.get("Transfer-Encoding") != "chunked":
            return request.rfile.read(int(request.headers.get("Content-Length") or 0))
        pieces = []
        while length := int(request.rfile.readline(), 16):
            pieces.append(request.rfile.read(length))
            request.rfile.readline()
        request.rfile.readline()
        return b"".join(pieces)

    def api(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.models.setdefault(repo, {})
            self.json(request, {"url": f"{self.url}/{repo}", "name": repo})
            return
        if path == "/api/validate-yaml":
            self.json(request, {"errors": [], "warnings": []})
            return
        match = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/(\w+)/([^/]+))?", path)
        repo, kind, revision = match.groups() if match else ("", None, None)
        if repo not in self.models:
            self.send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main", COMMIT):
            self.send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self.json(request, [self.entry(n, d) for n, d in self.models[repo].items()])
        elif kind == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            answer = {"uploadMode": "regular", "shouldIgnore": False}
            self.json(request, {"files": [{"path": path, **answer} for path in paths]})
        elif kind == "commit":
            self.commits.append((repo, [json.loads(line) for line in body.splitlines() if line]))
            url = f"{self.url}/{repo}/commit/{COMMIT}"
            self.json(request, {"success": True, "commitOid": COMMIT, "commitUrl": url})
        else:
            siblings = [{"rfilename": name} for name in self.models[repo]]
            self.json(request, {"id": repo, "sha": COMMIT, "siblings": siblings})

    def entry(self, name: str, data: bytes) -> dict:
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_sum(data)}
        if is_large(name):
            oid = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 130}
        return entry

    def resolve(self, request: BaseHTTPRequestHandler, repo: str, revision: str, name: str) -> None:
        data = self.models.get(repo, {}).get(name)
        if data is None:
            kind = "EntryNotFound" if repo in self.models else "RepoNotFound"
            self.send(request, 404, b"", {"X-Error-Code": kind})
            return
        large = is_large(name)
        etag = hashlib.sha256(data).hexdigest() if large else git_sum(data)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}
        if large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        self.send(request, 200, data, headers)

    def json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        headers = {"Content-Type": "application/json"}
        self.send(request, 200, json.dumps(value).encode(), headers)

    def send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        fault = next((f for end, f in self.faults.items() if request.path.endswith(end)), "")
        if fault.isdigit():
            status, data = int(fault), b""
        length = len(data)
        if fault == "corrupt":
            data = bytes(byte ^ 1 for byte in data)
        if fault == "truncate":
            data = data[: length // 2]
            request.close_connection = True
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)


def is_large(name: str) -> bool:
    return name.endswith((".hdf5", ".safetensors", ".pkl"))


def git_sum(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
