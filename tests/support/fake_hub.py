"""A Hugging Face hub on this machine, for huggingface_hub, transformers and datasets as they are:
repositories with commits, and a branch `main` that moves. Environment variables point to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class FakeHub:
    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}
        """By repository (`models/owner/name`) and commit, the newest last."""
        self.asked: list[str] = []
        """Paths, such as `/api/models/owner/name`."""
        self.address = ""

    def commit(self, repository: str, files: Files) -> str:
        """Adds a commit, which `main` is then. Returns it."""
        history = self.commits.setdefault(repository, {})
        made = hashlib.sha1(f"{repository} {len(history)}".encode()).hexdigest()
        history[made] = dict(files)
        return made

    def environment(self, cache: Path) -> dict[str, str]:
        """`cache`: a folder for what one machine downloads."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": str(urlsplit(self.address).hostname),
        }

    def answer(self, method: str, where: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        path = unquote(urlsplit(where).path)
        self.asked.append(path)
        if path == "/":
            return 200, {}, b""
        if path.startswith("/api/"):
            return self._api(path.removeprefix("/api/"), sent)
        repository, _, rest = path.strip("/").partition("/resolve/")
        if not repository.startswith("datasets/"):
            repository = f"models/{repository}"
        revision, _, file = rest.partition("/")
        found = self._revision(repository, revision)
        if found is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        commit, files = found
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = files[file]
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_digest(content)}"'}, content

    def _api(self, path: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        kind, *words = path.split("/")
        for length in (1, 2):
            repository = "/".join([kind, *words[:length]])
            if repository in self.commits:
                action, *rest = [*words[length:], ""]
                return self._of_repository(repository, action, rest, sent)
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _of_repository(
        self, repository: str, action: str, rest: list[str], sent: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        found = self._revision(repository, rest[0] if action else "main")
        if found is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        commit, files = found
        entries: Any = [_entry(name, content) for name, content in sorted(files.items())]
        if action in ("", "revision"):
            siblings = [{"rfilename": name} for name in files]
            name = repository.partition("/")[2]
            entries = {"id": name, "sha": commit, "siblings": siblings, "tags": []}
            entries |= {"private": False, "downloads": 0, "likes": 0}
        elif action == "paths-info":
            wanted = json.loads(sent)["paths"]
            entries = [one for one in entries if one["path"] in wanted]
        return 200, {}, json.dumps(entries).encode()

    def _revision(self, repository: str, revision: str) -> tuple[str, Files] | None:
        history = self.commits.get(repository, {})
        commit = next(reversed(history), None) if revision == "main" else revision
        return (commit, history[commit]) if commit is not None and commit in history else None


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def fake_hub(host: str = "127.0.0.1") -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, headers, content = hub.answer(self.command, self.path, sent)
            code, headers, content = _ranged(self.headers.get("Range"), code, headers, content)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = _do

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://{host}:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _ranged(
    asked: str | None, code: int, headers: Mapping[str, str], content: bytes
) -> tuple[int, dict[str, str], bytes]:
    if asked is None or code != 200:
        return code, dict(headers), content
    begin, _, end = asked.removeprefix("bytes=").partition("-")
    last = min(int(end), len(content) - 1) if end else len(content) - 1
    place = {"Content-Range": f"bytes {begin}-{last}/{len(content)}"}
    return 206, {**headers, **place}, content[int(begin) : last + 1]
