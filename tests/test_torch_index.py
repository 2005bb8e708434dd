"""An index of packages without torch is told from one that does not answer, before pip retries for minutes."""

import http.server
import importlib.util
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("torch_index", Path(__file__).parents[1] / "tools/torch_index.py")
assert spec is not None and spec.loader is not None
torch_index = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_index)


@contextmanager
def index(status, page=""):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/whl/cpu/torch/" else 400)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/whl/cpu"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "page", "code", "message"),
    [
        (200, '<a href="torch-2.13.0%2Bcpu-cp311-linux.whl">', 0, ""),
        (200, "<html></html>", 0, "answers but has no torch"),
        (404, "", 0, "answers but has no torch"),
        (503, "", 1, "answers with 503 Service Unavailable; pip would retry"),
    ],
)
def test_an_index_without_torch_is_no_failure_and_one_that_fails_is(status, page, code, message, monkeypatch, capsys):
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    with index(status, page) as url:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{url}/")
        assert torch_index.main() == code
    error = capsys.readouterr().err
    assert error == "" if not message else error.startswith("PIP_EXTRA_INDEX_URL: http") and message in error


def test_an_address_that_does_not_answer_is_a_failure_with_what_to_do(monkeypatch, capsys):
    with socket.socket() as free:  # bound but not listening, so a connection is refused
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        assert torch_index.main() == 1
    assert "does not answer" in (error := capsys.readouterr().err) and "Unset the variable" in error
    assert torch_index.shown("https://me:secret@host/simple?token=1") == "https://host/simple"
