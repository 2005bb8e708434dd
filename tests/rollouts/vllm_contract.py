"""Checks vLLM's own source for everything that `scalerl/training/engines/vllm` uses of it.

As a program: `python vllm_contract.py [VERSION...]` downloads the wheels of these versions, or of the newest two,
without dependencies, unpacks their Python files, and prints what does not fit. Needs torch, but no GPU and no vLLM.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OURS = ROOT / "scalerl/training/engines/vllm"
API, ONLINE, TOKENS = "entrypoints", "entrypoints/rl/online/api_router.py", "entrypoints/scale_out/token_in_token_out"

# ------------------------------------------------------------------------------------------------------------- wheels


def newest(count: int = 2) -> list[str]:
    """Return the newest final versions of vLLM on PyPI, of different minor versions, the newest first.

    Raises:
        OSError: PyPI does not answer.
    """
    done = pip("index", "versions", "vllm")
    found = re.search(r"Available versions: (.*)", done)
    by_minor: dict[str, str] = {}
    for version in found[1].split(", ") if found else ():
        if re.fullmatch(r"[\d.]+", version):
            by_minor.setdefault(".".join(version.split(".")[:2]), version)
    if not by_minor:
        raise OSError(f"no version of vllm in {done!r}")
    return list(by_minor.values())[:count]


def supported() -> str:
    """Return the newest version on PyPI that scalerl supports.

    Raises:
        OSError: PyPI does not answer.
    """
    from scalerl.training.engines.vllm.checks import NEWEST

    return next(v for v in newest(5) if tuple(map(int, v.split(".")[:2])) < NEWEST)


def unpacked(version: str, place: Path) -> Path:
    """Download a version's wheel without dependencies, unpack its Python files into a directory, and return it.

    Raises:
        OSError: PyPI does not answer.
    """
    with tempfile.TemporaryDirectory() as wheels:
        platform = ("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux1_x86_64", "--only-binary", ":all:")
        pip("download", "--no-deps", "--no-cache-dir", *platform, "-d", wheels, f"vllm=={version}")
        with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
            files = [name for name in wheel.namelist() if name.endswith((".py", "METADATA"))]
            wheel.extractall(place, files)
    return place


def pip(*words: str) -> str:
    """Return the output of pip."""
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise OSError(done.stderr[-500:])
    return done.stdout


# ------------------------------------------------------------------------------------------------------------- source


class Source:
    """The Python files of one version of vLLM."""

    def __init__(self, place: Path) -> None:
        """Read the files below a directory that has `vllm/`."""
        self.place = place
        self.root = place / "vllm"
        self.tree = cache(lambda path: ast.parse(path.read_text(encoding="utf-8")))

    def files(self, *parts: str) -> Iterator[Path]:
        """Yield files: of a directory, or one."""
        for part in parts:
            path = self.root / part
            yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,) if path.exists() else ()

    def routes(self) -> dict[tuple[str, str], ast.AsyncFunctionDef | ast.FunctionDef]:
        """Return the handler of each (method, path) of the server."""
        found = {}
        for file in self.files(API):
            for node in ast.walk(self.tree(file)):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for call in (mark for mark in node.decorator_list if isinstance(mark, ast.Call) and mark.args):
                    path = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                    if isinstance(call.func, ast.Attribute) and isinstance(path, str):
                        found[call.func.attr, path] = node
        return found

    def module(self, name: str) -> Path | None:
        """Return the file of a module such as vllm.distributed.weight_transfer.base."""
        path = self.place.joinpath(*name.split("."))
        return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)

    def names(self, path: Path) -> set[str]:
        """Return what a module defines or imports at its top, also inside `if` and `try`."""
        found: set[str] = set()
        for node in ast.walk(self.tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                found |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return found

    def definition(self, name: str, *parts: str) -> ast.ClassDef | ast.FunctionDef | None:
        """Return a class or function by its name, in files or directories."""
        for path in self.files(*parts):
            for node in ast.walk(self.tree(path)):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                    return node
        return None

    def fields(self, name: str, *parts: str) -> set[str]:
        """Return the annotated fields and the methods of a class, with those of its bases in the same files."""
        node = self.definition(name, *parts)
        if not isinstance(node, ast.ClassDef):
            return set()
        own = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        own |= {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            own |= self.fields(inner.id, *parts) if isinstance(inner, ast.Name) and inner.id != name else set()
        return own


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's arguments."""
    return {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


# ------------------------------------------------------------------------------------------------------------- checks


class Route(NamedTuple):
    """A route that scalerl uses, with the arguments of its handler that it relies on."""

    method: str
    path: str
    arguments: tuple[str, ...] = ()


def used_routes() -> list[Route]:
    """Return the routes of protocol.py; a test compares them with its constants."""
    from scalerl.training.engines.vllm import protocol as p

    return [
        Route("post", p.GENERATE), Route("get", p.VERSION_ROUTE), Route("get", p.MODELS), Route("get", p.HEALTH),
        Route("get", p.SERVER_INFO.partition("?")[0], ("config_format",)),
        Route("post", p.PAUSE.partition("?")[0], ("mode", "clear_cache")), Route("post", p.RESUME),
        Route("post", p.START_UPDATE), Route("post", p.UPDATE, ("update_info",)),
        Route("post", p.FINISH_UPDATE, ("weight_version",)), Route("get", p.WEIGHT_INFO), Route("get", p.IS_PAUSED),
        Route("post", p.INIT_TRANSFER, ("init_info",)), Route("post", p.SHUTDOWN_TRANSFER),
        Route("get", p.WORLD_SIZE), Route("post", p.LOAD_ADAPTER), Route("post", p.RPC),
        Route("post", p.SET_VERSION, ("new_version",)),
    ]  # fmt: skip


def check_routes(source: Source) -> Iterator[str]:
    """Yield the routes that are missing, and missing arguments of their handlers."""
    routes = source.routes()
    for route in used_routes():
        handler = routes.get((route.method, route.path))
        if handler is None:
            yield f"no route {route.method.upper()} {route.path}"
            continue
        for name in set(route.arguments) - arguments(handler):
            yield f"{route.method.upper()} {route.path} has no argument {name!r}"


def check_answers(source: Source) -> Iterator[str]:
    """Yield the fields of requests and answers that are missing."""
    from scalerl.training.engines.engine import Sampling
    from scalerl.training.engines.vllm.protocol import generate_body

    body = generate_body([1, 2], 4, Sampling(1.0, 0.9, ()), "a", "b", experts=True, adapter="c")
    yield from missing("GenerateRequest", set(body), source.fields("GenerateRequest", TOKENS))
    parameters = {*body["sampling_params"], "allowed_token_ids"}
    yield from missing("SamplingParams", parameters, source.fields("SamplingParams", "sampling_params.py"))
    choice = {"token_ids", "finish_reason", "logprobs", "weight_versions", "sampling_mask", "routed_experts"}
    for name in ("GenerateTokensChoice", "GenerateTokensStreamChoice"):
        yield from missing(name, choice, source.fields(name, TOKENS))
    texts = "".join(path.read_text() for path in source.files(TOKENS))
    for word in ("version", "start", "end", "token_id", "logprob", "content"):
        if not re.search(rf"\b{word}\b", texts):
            yield f"{TOKENS} does not have {word!r}"
    info = "".join(path.read_text() for path in source.files(ONLINE))
    for word in ("weight_version", "is_paused", "world_size"):
        if f'"{word}"' not in info:
            yield f"{ONLINE} does not answer with {word!r}"


def check_command_line(source: Source) -> Iterator[str]:
    """Yield the options and environment variables of a server that vLLM does not have."""
    from scalerl.training.engines.vllm.server import ServerSpec, command, environment
    from scalerl.training.placement.devices import USABLE

    declared = [path for path in source.files(API) if path.name == "cli_args.py"]
    text = "".join(path.read_text() for path in (*declared, *source.files("engine/arg_utils.py")))
    spec = ServerSpec("m", 10, 10, Path("log"), fp32_head=True, dtype="bfloat16")
    launch = re.findall(r'"(--[\w-]+)"', "".join((OURS / name).read_text() for name in ("launch.py", "adapters.py")))
    for option in {word for word in command(spec, 1, "n") if word.startswith("--")} | set(launch):
        field = option[2:].replace("-", "_")
        if not re.search(rf"\b{field}\b\s*[:=]|[\"']{option}[\"']", text):
            yield f"no option {option}"
    share = re.search(r"gpu_memory_utilization: float = (?:Field\(default=)?([\d.]+)", "".join(
        path.read_text() for path in source.files("config/cache.py")
    ))  # fmt: skip
    if share is None or float(share[1]) < USABLE:
        yield f"gpu_memory_utilization is {share and share[1]} by default, below the {USABLE} that plans use"
    module = command(spec, 1, "n")[2]
    if source.module(module) is None:
        yield f"no module {module}"
    variables = "".join(path.read_text() for path in source.files("envs.py"))
    for name in environment(replace(spec, backend="scalerl_adapters"), {}):
        if name.startswith("VLLM_") and name not in variables:
            yield f"no environment variable {name}"


def check_imports(source: Source) -> Iterator[str]:
    """Yield the modules and names that scalerl imports from vLLM and that are missing."""
    for path in (*OURS.rglob("*.py"), *(ROOT / "scalerl").glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                file = source.module(node.module or "")
                if file is None:
                    yield f"{path.name}: no module {node.module}"
                    continue
                for alias in node.names:
                    if alias.name not in source.names(file):
                        yield f"{path.name}: {node.module} has no {alias.name}"


def check_worker(source: Source) -> Iterator[str]:
    """Yield what the code inside vLLM's workers uses and vLLM does not have."""
    base = "distributed/weight_transfer/base.py"
    ours = ast.parse((OURS / "inside/scalerl_weights.py").read_text())
    engine = next(n for n in ast.walk(ours) if isinstance(n, ast.ClassDef) and n.name == "DirectoryEngine")
    methods = {n.name: n for n in engine.body if isinstance(n, ast.FunctionDef)}
    theirs = source.definition("WeightTransferEngine", base)
    for node in theirs.body if isinstance(theirs, ast.ClassDef) else ():
        marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
        if isinstance(node, ast.FunctionDef) and any("abstractmethod" in mark for mark in marks):
            if node.name not in methods:
                yield f"WeightTransferEngine has the abstract method {node.name}, which DirectoryEngine lacks"
            elif len(node.args.args) != len(methods[node.name].args.args):
                yield f"WeightTransferEngine.{node.name} takes {[a.arg for a in node.args.args]}"
    text = "" if theirs is None else ast.unparse(theirs)
    for name in ("self.model", "self.model_config", "self.device", "parse_update_info", "init_info_cls"):
        if name not in text:
            yield f"WeightTransferEngine has no {name}"
    reload = "model_executor/model_loader/reload"
    for name, count in (("initialize_layerwise_reload", 1), ("finalize_layerwise_processing", 2)):
        found = source.definition(name, reload)  # finalize_layerwise_reload passes its arguments to the second
        required = len(found.args.args) - len(found.args.defaults) if isinstance(found, ast.FunctionDef) else -1
        if not (isinstance(found, ast.FunctionDef) and required <= count <= len(found.args.args)):
            yield f"{name} cannot be called with {count} arguments"
    info = source.fields("LayerReloadingInfo", reload)
    yield from missing("LayerReloadingInfo", {"load_numel", "load_numel_total"}, info)
    moe = "model_executor/layers/fused_moe"
    texts = "".join(path.read_text() for path in source.files(moe + "/unquantized_fused_moe_method.py"))
    texts += "".join(path.read_text() for path in source.files(moe + "/fused_moe_method_base.py"))
    for word in ("moe_kernel", "_init_moe_kernel", "process_weights_after_loading"):
        if word not in texts:
            yield f"UnquantizedFusedMoEMethod has no {word}"
    if source.definition("ParallelLMHead", "model_executor/layers/vocab_parallel_embedding.py") is None:
        yield "no class ParallelLMHead"


def check_adapters(source: Source) -> Iterator[str]:
    """Yield what the replacement of adapters uses and vLLM does not have."""
    from scalerl.training.engines.vllm.adapters import RANKS, has_adapter_layers

    ranks = re.search(r"MaxLoRARanks = Literal\[([\d, ]+)\]", (source.root / "config/lora.py").read_text())
    if ranks is None or tuple(map(int, ranks[1].split(","))) != RANKS:
        yield f"MaxLoRARanks is {ranks and ranks[1]}, not {RANKS}"
    request = source.fields("LoRARequest", "lora/request.py")
    yield from missing("LoRARequest", {"lora_name", "lora_int_id", "lora_path", "load_inplace"}, request)
    worker = source.fields("LRUCacheWorkerLoRAManager", "lora/worker_manager.py")
    yield from missing("LRUCacheWorkerLoRAManager", {"add_adapter", "list_adapters"}, worker)
    yield from missing("LoRAModelManager", {"get_adapter"}, source.fields("LoRAModelManager", "lora/model_manager.py"))
    settings = source.fields("PEFTHelper", "lora/peft_helper.py")
    yield from missing("PEFTHelper", {"r", "lora_alpha", "target_modules", "bias"}, settings)
    add = source.definition("LRUCacheWorkerLoRAManager", "lora/worker_manager.py")
    for word, text in (
        ("lora_request.load_inplace", "" if add is None else ast.unparse(add)),
        ("self._adapter_manager", (source.root / "lora/worker_manager.py").read_text()),
        ("self.modules", (source.root / "lora/model_manager.py").read_text()),
        ("self.lora_manager = ", (source.root / "v1/worker/lora_model_runner_mixin.py").read_text()),
        ("cache_salt", (source.root / "v1/core/kv_cache_utils.py").read_text()),
    ):
        if word not in text:
            yield f"vllm/lora has no {word}"
    for name, able in (("Qwen3ForCausalLM", True), ("MistralForCausalLM", True), ("GPT2LMHeadModel", False)):
        if has_adapter_layers(source.root, name) != able:
            yield f"{name} has {'no ' * able}adapters"


def missing(where: str, used: Iterable[str], existing: set[str]) -> Iterator[str]:
    """Yield the used names that do not exist."""
    if not existing:
        yield f"no class {where}"
        return
    yield from (f"{where} has no {name!r}" for name in sorted(set(used) - existing))


CHECKS = (
    check_routes,
    check_answers,
    check_command_line,
    check_imports,
    check_worker,
    check_adapters,
)


def problems(place: Path) -> list[str]:
    """Return what an unpacked version of vLLM lacks of that which scalerl uses."""
    source = Source(place)
    return [problem for check in CHECKS for problem in check(source)]


def torch_of(place: Path) -> str:
    """Return the version of torch that an unpacked version of vLLM requires, such as 2.13.0."""
    text = next(place.glob("vllm-*.dist-info/METADATA")).read_text()
    found = re.search(r"^Requires-Dist: torch==([\d.]+)", text, re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    report = {}
    for version in sys.argv[1:] or newest():
        with tempfile.TemporaryDirectory() as place:
            report[version] = {"torch": torch_of(unpacked(version, Path(place))), "problems": problems(Path(place))}
    print(json.dumps(report, indent=2))
    sys.exit(any(entry["problems"] for entry in report.values()))
