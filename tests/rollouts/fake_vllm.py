"""A fake server with vLLM's HTTP interface and faults on demand. Needs only the standard library, and
numpy to report experts.

Its model is a table: the distribution of the next token depends on the previous token and on the version of the
weights, `logps(version, token)`. The version is read from the name of the loaded file. As a program it takes vLLM's
command line: `fake_vllm.py -m ... --port 8000`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

VOCABULARY = 12
STOP = 1


def logps(version: int, token: int, temperature: float = 1.0) -> list[float]:
    """Return the log-probability of each next token; the stop token has a probability of about 0.05."""
    draw = random.Random(f"{version}.{token}")
    logits = [draw.uniform(-2.0, 2.0) / temperature for _ in range(VOCABULARY)]
    logits[STOP] = -0.5
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def nucleus(table: list[float], top_p: float) -> list[int]:
    """Return the fewest ids, likeliest first, whose probabilities reach top_p; in order of the ids."""
    ids, total = [], 0.0
    for id in sorted(range(VOCABULARY), key=lambda id: -table[id]):
        if total < top_p:
            ids, total = [*ids, id], total + math.exp(table[id])
    return sorted(ids)


class FakeVllm:
    """The server; its attributes are its settings, faults and recorded requests."""

    def __init__(
        self, port: int = 0, recorded: list[dict] | None = None, host: str = "127.0.0.1", handler: type | None = None
    ) -> None:
        self.settings = {
            "model_config": {"dtype": "torch.float32", "hf_overrides": {}},
            "scheduler_config": {"max_num_seqs": 64},
            "weight_transfer_config": {"backend": "scalerl_directory"},
        }
        self.version_name, self.max_model_len, self.vocabulary = "0.32.0", 4096, VOCABULARY
        self.development, self.scale_out, self.processed = True, True, True
        self.delay_s, self.load_s, self.preempted_s = 0.0005, 0.0, 0.0
        self.loads = threading.Event()
        """Whether requests to load weights go on."""
        self.loads.set()
        self.faults: Counter[str] = Counter()
        """Number of next requests with each fault: refuse, hang, preempt, drop, half, error, nonsense, short, no_pause,
        no_load, wrong_label, stale."""
        self.experts: tuple[int, int, int] | None = None
        """Layers with experts, experts per token and per layer, with --enable-return-routed-experts."""
        self.masks = False
        """--return-sampling-mask."""
        self.served = "fake"
        self.label, self.weights = "default", 0
        self.adapters: set[str] = set()
        """Names of the adapters that requests can ask for."""
        self.partial = False
        """Whether an update has begun that did not finish: a request then ends the server, as it does vLLM's."""
        self.requests: list[dict] = []
        self.running, self.most_running, self.deserted = 0, 0, 0
        self.calls: list[str] = []
        self.bodies: list[dict] = []
        self.world_size = 1
        self.recorded = recorded
        self.lock, self.unpaused = threading.RLock(), threading.Event()
        self.unpaused.set()
        self.http = Http((host, port), type("Bound", (handler or Handler,), {"fake": self}))
        self.address = f"http://{host}:{self.http.server_address[1]}"

    def __enter__(self) -> FakeVllm:
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.unpaused.set()
        self.http.shutdown()
        self.http.server_close()

    def suffers(self, fault: str) -> bool:
        """Use up one occurrence of a fault; return whether there was one."""
        with self.lock:
            self.faults[fault] -= 1
            return self.faults[fault] >= 0

    def routed(self, tokens: list[int]) -> str | None:
        """Return the experts of tokens as vLLM does; in layer l, token t has the experts t + l, t + l + 1, ..."""
        if self.experts is None:
            return None
        import numpy as np

        layers, active, count = self.experts
        of_token = np.asarray(tokens)[:, None, None] + np.arange(layers)[:, None] + np.arange(active)
        np.save(file := io.BytesIO(), (of_token % count).astype(np.uint8))
        return base64.b64encode(file.getvalue()).decode()

    def sample(self, draw: random.Random, last: int, parameters: dict) -> tuple[int, float, list[int]]:
        """Return the next token, its log-probability, and the ids that it was sampled from.

        `stale` always samples with version 0."""
        version = 0 if self.faults["stale"] > 0 else self.weights
        table = logps(version, last, parameters.get("temperature", 1.0))
        if parameters.get("top_k") == 1:
            token = table.index(max(table))
            return token, 0.0 if self.processed else table[token], [token]
        ids = nucleus(table, parameters.get("top_p", 1.0))
        weights = [math.exp(table[id]) for id in ids]
        token = draw.choices(ids, weights)[0]
        return token, table[token] - (math.log(sum(weights)) if len(ids) < VOCABULARY else 0.0), ids


class Http(ThreadingHTTPServer):
    """The HTTP server; ignores connections closed by a client or a fault."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print errors of the fake server only."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):  # ValueError: a closed file
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection; `fake` is the server it belongs to."""

    protocol_version = "HTTP/1.1"
    fake: FakeVllm

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.fake.calls.append(self.path)
        if self.fake.recorded is not None:
            return self.replay("GET", None)
        answers = {
            "/health": {},
            "/version": {"version": self.fake.version_name},
            "/v1/models": {
                "data": [
                    {"id": self.fake.served, "max_model_len": self.fake.max_model_len},
                    *({"id": name} for name in sorted(self.fake.adapters)),
                ]
            },
        }
        if self.fake.development:
            answers |= {
                "/weight_info": {"weight_version": self.fake.label},
                "/is_paused": {"is_paused": not self.fake.unpaused.is_set()},
                "/get_world_size": {"world_size": self.fake.world_size},
                "/server_info": {"vllm_config": self.fake.settings},
            }
        path = urlsplit(self.path).path
        self.answer(200 if path in answers else 404, answers.get(path, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        self.fake.calls.append(self.path)
        if self.fake.recorded is not None:
            return self.replay("POST", body)
        name = urlsplit(self.path).path.rsplit("/", 1)[-1]
        try:
            getattr(self, f"on_{name}")(body)
        except (BrokenPipeError, ConnectionResetError):
            self.fake.deserted += 1

    # ------------------------------------------------------------------------------------------------- weights

    def on_pause(self, body: dict | None) -> None:
        assert "mode=keep" in self.path and "clear_cache=false" in self.path, self.path
        if self.fake.suffers("no_pause"):
            return self.answer(500, {"error": "Failed to pause generation"})
        self.fake.unpaused.clear()
        self.answer(200, {"status": "paused"})

    def on_resume(self, body: dict | None) -> None:
        self.fake.unpaused.set()
        self.answer(200, {"status": "resumed"})

    def on_init_weight_transfer_engine(self, body: dict) -> None:
        self.fake.bodies.append(body)
        self.answer(200, {"message": "Weight transfer initialized"})

    def on_shutdown_weight_transfer_engine(self, body: dict | None) -> None:
        self.answer(200, {"message": "Weight transfer shut down"})

    def on_start_weight_update(self, body: dict | None) -> None:
        assert not self.fake.unpaused.is_set(), "weights are sent only to a paused server"
        self.fake.partial = True
        self.answer(200, {"message": "Weight update started"})

    def on_update_weights(self, body: dict) -> None:
        if "path" not in body["update_info"]:  # weights over NCCL
            self.fake.bodies.append(body)
            return self.answer(200, {"message": "Weights updated"})
        path = Path(body["update_info"]["path"])
        if self.fake.suffers("no_load") or not path.exists():
            return self.answer(500, {"error": {"message": f"No such file or directory: {path}"}})
        time.sleep(self.fake.load_s)
        self.fake.loads.wait(60)
        self.fake.weights = int(re.search(r"version_(\d+)", path.name)[1])
        self.answer(200, {"message": "Weights updated"})

    def on_finish_weight_update(self, body: dict) -> None:
        self.fake.partial = False
        if "weight_version" in body and not self.fake.suffers("wrong_label"):
            self.fake.label = body["weight_version"]
        self.answer(200, {"message": "Weight update finished"})

    def on_load_lora_adapter(self, body: dict) -> None:
        if body["lora_name"] in self.fake.adapters:
            return self.answer(400, {"error": {"message": "The lora adapter has already been loaded."}})
        if self.adapter_in(body["lora_path"]):
            self.fake.adapters.add(body["lora_name"])
            self.plain(200, b"Success: LoRA adapter added successfully.", "text/plain")

    def on_collective_rpc(self, body: dict) -> None:
        name, path = body["args"]
        assert body["method"] == "replace_adapter" and name in self.fake.adapters, body
        assert not self.fake.unpaused.is_set(), "adapters are replaced only in a paused server"
        if self.adapter_in(path):
            self.fake.weights = int(re.search(r"version_(\d+)", path)[1])
            self.answer(200, {"results": [None]})

    def adapter_in(self, path: str) -> bool:
        files = {file.name for file in Path(path).glob("*")}
        if not self.fake.suffers("no_load") and files >= {"adapter_config.json", "adapter_model.safetensors"}:
            return True
        self.answer(500, {"error": {"message": f"No adapter found for {path}"}})
        return False

    def on_update_weight_version(self, body: dict) -> None:
        if not self.fake.suffers("wrong_label"):
            self.fake.label = body["new_version"]
        self.answer(200, {"success": True, "new_version": body["new_version"]})

    # ---------------------------------------------------------------------------------------------- generation

    def on_generate(self, body: dict) -> None:
        if not self.fake.scale_out:
            return self.answer(403, {"error": {"message": "Scale-out endpoints are disabled."}})
        allowed = body["sampling_params"].get("allowed_token_ids", [0])
        if max(allowed) >= self.fake.vocabulary:
            return self.answer(400, {"error": {"message": "allowed_token_ids contains out-of-vocab token id!"}})
        if "model" in body and body["model"] not in self.fake.adapters:
            return self.answer(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        if body.get("stream"):
            with self.fake.lock:
                self.fake.requests.append(body)
        if self.fake.masks and body["sampling_params"].get("top_k", 0) <= 0:
            return self.answer(400, {"error": {"message": "sampling distribution replay requires top_k > 0"}})
        if self.fake.partial:
            self.fake.faults["refuse"] = 1 << 30
        if self.fake.suffers("refuse"):
            return self.answer(500, {"error": {"message": "EngineCore encountered an issue."}})
        if self.fake.suffers("hang"):
            time.sleep(20.0)
            return None
        if self.fake.suffers("preempt"):
            time.sleep(self.fake.preempted_s)
        if not body.get("stream"):
            choice = next(c for c in self.choices(body) if c["finish_reason"])
            return self.answer(200, {"choices": [choice]})
        with self.fake.lock:
            self.fake.running += 1
            self.fake.most_running = max(self.fake.most_running, self.fake.running)
        try:
            return self.stream(body)
        finally:
            with self.fake.lock:
                self.fake.running -= 1

    def choices(self, body: dict):
        """Yield the choice of each chunk; without streaming, a single one."""
        parameters, last = body["sampling_params"], body["token_ids"][-1]
        draw = random.Random(f"{body.get('request_id')}")
        interval = parameters.get("stream_interval", 1) if body.get("stream") else 1 << 40
        entries: list[dict] = []
        masks: list[list[int]] = []
        tokens = body["token_ids"][parameters.get("routed_experts_prompt_start", 0) :]
        spans: list[dict] = []
        limit = parameters["max_tokens"]
        if self.fake.suffers("short"):
            limit -= 1
        for count in range(1, limit + 1):
            time.sleep(self.fake.delay_s)
            self.fake.unpaused.wait()
            with self.fake.lock:
                last, logp, ids = self.fake.sample(draw, last, parameters)
                if not spans or spans[-1]["version"] != self.fake.label:
                    spans.append({"version": self.fake.label, "start": count - 1, "end": count})
                spans[-1]["end"] = count
            entries.append({"token_id": last, "logprob": logp})
            tokens.append(last)
            masks.append(ids)
            stopped = last in parameters.get("stop_token_ids", ())
            final = stopped or count == limit
            if (count == 1 and body.get("stream")) or len(entries) >= interval or final:
                yield {
                    "index": 0,
                    "finish_reason": ("stop" if stopped else "length") if final else None,
                    "token_ids": [entry["token_id"] for entry in entries],
                    "logprobs": {"content": entries},
                    "sampling_mask": masks if self.fake.masks else None,
                    "weight_versions": spans if final else None,
                    "routed_experts": self.fake.routed(tokens[:-1]) if final else None,
                }
                entries, masks = [], []
            if final:
                return

    def stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for sent, choice in enumerate(self.choices(body)):
            event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
            if sent >= 2 and not choice["finish_reason"]:
                if self.fake.suffers("drop"):
                    self.close_connection = True
                    return self.connection.shutdown(socket.SHUT_RDWR)
                if self.fake.suffers("half"):
                    self.piece(event[: len(event) // 2])
                    return self.piece(b"")
                if self.fake.suffers("error"):
                    self.piece(b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')
                    return self.piece(b"data: [DONE]\n\n", b"")
                if self.fake.suffers("nonsense"):
                    event = b'data: {"choices": [{"token_ids": [3]}]}\n\n'
            self.piece(event)
        self.piece(b"data: [DONE]\n\n", b"")

    def piece(self, *parts: bytes) -> None:
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.flush()

    def answer(self, status: int, content: dict) -> None:
        data = json.dumps(content).encode()
        self.plain(status, data, "application/json")

    def plain(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def replay(self, method: str, body: dict | None) -> None:
        """Return the next recorded answer to this method and path; repeat the last one."""
        matching = [e for e in self.fake.recorded if (e["method"], e["path"]) == (method, self.path)]
        exchange = matching[0]
        if len(matching) > 1:
            self.fake.recorded.remove(exchange)
        self.fake.requests.append({"path": self.path, "body": body, "recorded": exchange["body"]})
        self.plain(exchange["status"], exchange["answer"].encode(), exchange["type"])


if __name__ == "__main__":
    with FakeVllm(int(sys.argv[sys.argv.index("--port") + 1])) as server:
        for place, word in enumerate(sys.argv):
            if word == "--served-model-name":  # the last one counts
                server.served = sys.argv[place + 1]
        if "--weight-transfer-config" in sys.argv:
            how = sys.argv[sys.argv.index("--weight-transfer-config") + 1]
            server.settings["weight_transfer_config"] = json.loads(how)
        print("fake vLLM at", server.address, flush=True)
        if "--die" in sys.argv:
            sys.exit("RuntimeError: out of luck")
        threading.Event().wait()
