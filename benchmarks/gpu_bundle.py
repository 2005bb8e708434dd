"""Prepares what a machine with a GPU and without a network needs besides its own packages: vLLM, TRL, and their needs.

    make gpu-bundle [ARGS="--python 3.12 --arch 90 --given benchmarks/gpu_packages.txt --out gpu-bundle"]

Writes one folder of wheels below 60 MB, with bundle.json, which lists them. vLLM's wheel is cut to the code of one
architecture. --given lists the packages of the machine: replace it with `pip freeze` of yours. Checks: only code of
other architectures differs from the original wheel; every requirement is in the folder, given or in LEFT_OUT; and, with
--interpreter or a Python of that version on the path, the wheels are installed beside the given packages into a fresh
environment (7 GB in the temporary directory) and imported, with a stub in place of the driver's library.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
VLLM, TRL = "vllm==0.32.0", "trl==1.16.0"
EXTRAS = ("train", "vllm", "lora")
"""Extras of scalerl whose requirements the machine needs."""

LIMIT_MB = 60

LEFT_OUT = {
    "anthropic", "blake3", "depyf", "fastapi-cli", "fastsafetensors", "flashinfer-python", "humming-kernels", "ijson",
    "instanttensor", "lark", "lm-format-enforcer", "mcp", "mistral-common", "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl", "nvtx", "opentelemetry-exporter-otlp", "opentelemetry-sdk",
    "opentelemetry-semantic-conventions-ai", "outlines-core", "pynvvideocodec", "python-json-logger", "quack-kernels",
    "setproctitle", "supervisor", "tilelang", "tokenspeed-mla", "torchcodec",
}  # fmt: skip
"""Requirements that a server of a text model in BF16 or FP32 does not import; some are larger than all others."""

LEFT_OUT_FILES = ("vllm/vllm-rs", "vllm/third_party/deep_gemm/", "vllm/third_party/fmha_sm100/")
"""Parts of vLLM's wheel: a frontend in Rust, and kernels of FP8 and of Blackwell, of which vLLM finds that they lack.

DeepGEMM needs a newer torch than 2.11; if its files are there, vLLM takes it for installed.
"""

FATBIN, CODE = b"\x50\xed\x55\xba", 2
"""Magic number of a container of GPU code, and the kind of its entries with machine code; 1 is PTX."""


class BundleError(Exception):
    """The folder cannot be made, or a check found something; the text says what to do."""


# ----------------------------------------------------------------------------------------------------------------- cut


def entries(library: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, architecture (90 for sm_90), first byte and size of the code of every entry.

    Layout: a container has a header of 16 bytes (magic, version, its own size, size of the entries as 8 bytes). Each
    entry has kind, version, size of its header (4 bytes), size of its code (8), and at 28 the architecture (4).
    """
    at = library.find(FATBIN)
    while at >= 0:
        _, header, size = struct.unpack_from("<HHQ", library, at + 4)
        at, end = at + header, at + header + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, at)
            yield kind, struct.unpack_from("<I", library, at + 28)[0], at + header, size
            at += header + size
        at = library.find(FATBIN, end)


def runs_on(arch: int, kind: int, built_for: int) -> bool:
    """Return whether a GPU runs this code: machine code of its major version, not of a newer minor one."""
    return kind == CODE and built_for // 10 == arch // 10 and built_for <= arch


def cut(library: bytes, arch: int) -> tuple[bytes, int]:
    """Return a library with zeros in place of code for other architectures, and the number of entries that are left."""
    changed, left = bytearray(library), 0
    for kind, built_for, first, size in entries(library):
        if runs_on(arch, kind, built_for):
            left += 1
        else:
            changed[first : first + size] = bytes(size)
    return bytes(changed), left


def cut_wheel(source: Path, target: Path, arch: int) -> dict[str, int]:
    """Write a wheel without other code and LEFT_OUT_FILES; return the entries left in each library that had some.

    Members are compressed with LZMA, which pip reads: a wheel is smaller by a fifth, GPU code by three quarters.
    """
    left = {}
    with zipfile.ZipFile(source) as wheel, zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as smaller:
        record = next(name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
        lines = []
        for info in wheel.infolist():
            if info.filename.startswith(LEFT_OUT_FILES) or info.is_dir() or info.filename == record:
                continue
            data = wheel.read(info)
            if info.filename.endswith(".so") and FATBIN in data:
                data, left[info.filename] = cut(data, arch)
            smaller.writestr(info, data, zipfile.ZIP_LZMA)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{info.filename},sha256={digest},{len(data)}\n")
        smaller.writestr(record, "".join(lines) + f"{record},,\n")
    return left


def check_cut(source: Path, target: Path, arch: int) -> int:
    """Return the number of files that differ: the section of GPU code may, except in code for this architecture.

    Raises:
        BundleError: A file has other bytes elsewhere, another size, or is missing.
    """
    differing = 0
    with zipfile.ZipFile(source) as wheel, zipfile.ZipFile(target) as smaller:
        there = set(smaller.namelist())
        for name in wheel.namelist():
            if name.startswith(LEFT_OUT_FILES) or name.endswith(("/", ".dist-info/RECORD")):
                continue
            if name not in there:
                raise BundleError(f"{target.name}: {name} is missing")
            before, after = wheel.read(name), smaller.read(name)
            if before == after:
                continue
            first, last = section(before, b".nv_fatbin") if before[:4] == b"\x7fELF" else (0, 0)
            if len(before) != len(after) or before[:first] + before[last:] != after[:first] + after[last:]:
                raise BundleError(f"{target.name}: {name} differs outside the section of GPU code")
            kept = [part[2:] for part in entries(before) if runs_on(arch, *part[:2])]
            if any(before[at : at + size] != after[at : at + size] for at, size in kept):
                raise BundleError(f"{target.name}: {name} differs in code for sm_{arch}")
            differing += 1
    return differing


def section(library: bytes, name: bytes) -> tuple[int, int]:
    """Return first and last byte of a section of a 64-bit ELF file; (0, 0) if there is none."""
    table, size, count, names = *struct.unpack_from("<Q", library, 40), *struct.unpack_from("<3H", library, 58)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    for header in headers:
        if library[headers[names][4] + header[0] :].startswith(name + b"\0"):
            return header[4], header[4] + header[5]
    return 0, 0


# ------------------------------------------------------------------------------------------------------------- closure


def read_given(path: Path) -> dict[str, str]:
    """Return the version of each package of a list, as `pip freeze` writes it; empty if a line has none."""
    from packaging.utils import canonicalize_name

    lines = (line.partition("#")[0].partition(";")[0].strip() for line in path.read_text().splitlines())
    parts = (re.split("==| @ ", line, maxsplit=1) for line in lines if line and not line.startswith("-"))
    return {
        canonicalize_name(name): version[0].partition("+")[0] if version and ":" not in version[0] else ""
        for name, *version in parts
    }


def closure(roots: Iterable[str], given: dict[str, str], python: str, wheels: Path) -> tuple[set[str], list[str]]:
    """Download everything that the requirements need and that is not given.

    Returns:
        The given packages that are needed, and lines about those whose version is another one than is asked for.

    Raises:
        BundleError: There is no wheel that satisfies the requirements.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    specifiers: dict[str, SpecifierSet] = {}
    extras: dict[str, set[str]] = {}
    todo, used, other = [Requirement(root) for root in roots], set(), []
    while todo:
        again = set()
        for one in todo:
            name = canonicalize_name(one.name)
            before = specifiers.get(name), set(extras.get(name, ()))
            specifiers[name] = specifiers.get(name, SpecifierSet()) & one.specifier
            extras.setdefault(name, set()).update(one.extras)
            if name in given:
                used.add(name)
                if given[name] and not one.specifier.contains(given[name], prereleases=True):
                    other.append(f"{name} {given[name]} is given, where {one.specifier} is asked for")
            elif name not in LEFT_OUT and before != (specifiers[name], extras[name]):
                again.add(name)
        for name in again:  # an earlier choice may not satisfy a later requirement
            for old in wheels.glob("*.whl"):
                if canonicalize_name(old.name.split("-")[0]) == name:
                    old.unlink()
        download([f"{name}{specifiers[name]}" for name in sorted(again)], python, wheels)
        todo = [
            one
            for wheel in wheels.glob("*.whl")
            if (name := canonicalize_name(wheel.name.split("-")[0])) in again
            for one in needs(wheel, extras[name], python)
        ]
    return used, sorted(set(other))


def needs(wheel: Path, extras: Iterable[str], python: str) -> list[Requirement]:
    """Return what a wheel requires on Linux with this version of Python."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as file:
        metadata = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        head = file.read(metadata).decode().partition("\n\n")[0]
    found = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", head, re.MULTILINE)]
    machine = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": "x86_64",
               "sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython"}  # fmt: skip
    return [
        one for one in found
        if one.marker is None or any(one.marker.evaluate({**machine, "extra": extra}) for extra in ["", *extras])
    ]  # fmt: skip


def download(requirements: list[str], python: str, wheels: Path) -> None:
    """Download wheels for Linux on x86-64, without what they require."""
    tags = ["manylinux2014", "manylinux2010", "manylinux1", *(f"manylinux_2_{n}" for n in range(39, 4, -1))]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_x86_64")]
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version"]
    if requirements:
        run([sys.executable, "-m", "pip", *words, python, *platforms, "--dest", str(wheels), *requirements])


def run(command: list[str], **options: Any) -> str:
    """Run a command and return its output.

    Raises:
        BundleError: It failed; the text has its last lines.
    """
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise BundleError(f"{' '.join(command)[:120]} ...: " + " | ".join(errors[-4:]))
    return done.stdout


# ------------------------------------------------------------------------------------------------------------- install


def environment(bundle: Path, python: str, place: Path) -> str:
    """Install the wheels into a virtual environment that sees the packages of `python` too; return its Python.

    vLLM's servers start without PYTHONPATH, so a folder on the path would not do. Nothing is done if it is there.
    """
    ours, stamp, listing = place / "bin/python", place / "bundle.json", (bundle / "bundle.json").read_text()
    if stamp.exists() and stamp.read_text() == listing:
        return str(ours)
    if (wanted := json.loads(listing)["python"]) != (got := version_of(python)):
        raise BundleError(f"{bundle} is for Python {wanted}, {python} is {got or 'none'}; call it with another Python")
    run([python, "-m", "venv", "--clear", "--without-pip", str(place)])
    wheels = [str(wheel) for wheel in bundle.glob("*.whl")]
    run([python, "-m", "pip", "--python", str(ours), "install", "--no-index", "--no-deps", "--no-compile", *wheels])
    theirs = run([python, "-c", "import sys; print(*[p for p in sys.path if p.endswith('-packages')], sep='\\n')"])
    site = Path(run([str(ours), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    lines = [f"import site; site.addsitedir({folder!r})" for folder in theirs.splitlines()]
    (site / "given.pth").write_text("\n".join(lines) + "\n")
    stamp.write_text(listing)
    return str(ours)


IMPORTS = """
import importlib, json, pathlib, sys
import torch, vllm.platforms, vllm.platforms.cuda as cuda
from vllm.platforms.interface import DeviceCapability

class Pretended(cuda.NonNvmlCudaPlatform):  # so that the imports are those of a machine with a GPU
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*divmod(int(sys.argv[1]), 10)))
    num_compute_units = classmethod(lambda cls, device_id=0: 132)

vllm.platforms._current_platform = Pretended()
for name in sys.argv[2:]:
    importlib.import_module(name)
place, loaded = pathlib.Path(vllm.__file__).parent, []
for library in sorted(place.rglob("*.so")):
    try:
        torch.ops.load_library(library)
        loaded.append(library.name)
    except OSError as error:
        print(f"not loaded: {error}", file=sys.stderr)
print(json.dumps(loaded))
"""

MODULES = [
    "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.flash_attn", "vllm.v1.attention.backends.triton_attn", "vllm.vllm_flash_attn",
    "vllm.model_executor.models.qwen3", "vllm.model_executor.models.qwen3_moe", "vllm.lora.worker_manager",
    "vllm.model_executor.layers.quantization.online.base", "vllm.entrypoints.serve.instrumentator.metrics",
    "model_hosting_container_standards.sagemaker", "trl.trainer.grpo_trainer", "trl.generation.vllm_generation",
    "datasets", "scalerl.cli", "scalerl.training.loop.run", "scalerl.training.engines.vllm.launch",
    "scalerl.training.learner.single",
    "math_verify", "pint", "pyseccomp",
]  # fmt: skip
"""What a server, its worker, TRL's trainer and a run import, some of it only when they start."""


def check_imports(bundle: Path, interpreter: str, given: list[str], arch: int) -> list[str]:
    """Install given packages and the bundle into fresh environments, and import; return vLLM's libraries that load."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        run([interpreter, "-m", "venv", str(place / "given")])
        run([str(place / "given/bin/python"), "-m", "pip", "install", "--quiet", *given])
        python = environment(bundle, str(place / "given/bin/python"), place / "bundle")
        stub_driver(place, next((place / "bundle").rglob("site-packages")))
        variables = {
            "LD_LIBRARY_PATH": scratch,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "PATH": "/usr/bin:/bin",
        }
        no_gpu = {"CUDA_VISIBLE_DEVICES": "", "HOME": scratch}  # Triton accepts that there is no driver
        loaded = run([python, "-c", IMPORTS, str(arch), *MODULES], env=variables | no_gpu, cwd=scratch)
        found: list[str] = json.loads(loaded.splitlines()[-1])
        return found


def stub_driver(place: Path, site: Path) -> None:
    """Build a libcuda.so.1 in which every function that vLLM's libraries use does nothing."""
    names = set()
    for library in site.glob("vllm/**/*.so"):
        names |= set(re.findall(rb"\0(cu[A-Z][a-z]\w+)(?=\0)", library.read_bytes()))
    (place / "stub.c").write_text("".join(f"void {name.decode()}(void) {{}}\n" for name in sorted(names)))
    run(["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", f"{place}/libcuda.so.1", f"{place}/stub.c"])


def version_of(python: str) -> str:
    """Return the version of an interpreter, such as 3.12; empty if it does not start."""
    words = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


# ---------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    parser.add_argument("--arch", type=int, default=90, help="90 for H100 and H200")
    parser.add_argument("--given", type=Path, default=Path(__file__).with_name("gpu_packages.txt"))
    parser.add_argument("--out", type=Path, default=Path("gpu-bundle"))
    parser.add_argument("--interpreter", help="Python of that version, for the imports; default: one on the path")
    options = parser.parse_args()
    try:
        build(options)
    except (BundleError, OSError) as error:
        sys.exit(f"gpu_bundle: {error}")


def build(options: argparse.Namespace) -> None:
    """Make the folder, check it and print what it holds."""
    given, project = read_given(options.given), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = [*project["dependencies"], *(one for name in EXTRAS for one in project["optional-dependencies"][name])]
    if options.out.exists() and not (options.out / "bundle.json").exists() and any(options.out.iterdir()):
        raise BundleError(f"--out: {options.out} is there and no bundle; give another folder, or remove it")
    shutil.rmtree(options.out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch)
        used, other = closure([VLLM, TRL, *ours], given, options.python, wheels)
        options.out.mkdir(parents=True)
        left, differing = {}, 0
        for wheel in wheels.glob("*.whl"):
            left |= cut_wheel(wheel, options.out / wheel.name, options.arch)
            differing += check_cut(wheel, options.out / wheel.name, options.arch)
        if not any(left.values()):
            raise BundleError(f"--arch: got {options.arch}, for which vLLM has no code; 90 is that of H100 and H200")
    sizes = {wheel.name: wheel.stat().st_size for wheel in sorted(options.out.glob("*.whl"))}
    listing = {
        "python": options.python, "architecture": f"sm_{options.arch}", "wheels": sizes,
        "given": {name: given[name] for name in sorted(used)}, "given in another version": other,
        "left out": sorted(LEFT_OUT), "left out of vLLM": LEFT_OUT_FILES, "entries of code in vLLM": left,
    }  # fmt: skip
    (options.out / "bundle.json").write_text(json.dumps(listing, indent=1) + "\n")
    total = sum(sizes.values()) / 1e6
    print(f"{options.out}: {len(sizes)} wheels, {total:.1f} MB, Python {options.python}, sm_{options.arch}")
    print(f"vLLM: {differing} libraries were cut and differ in GPU code only; "
          f"without code: {', '.join(Path(name).name for name, count in left.items() if not count)}")  # fmt: skip
    print(f"given: {', '.join(sorted(used))}", *other, sep="\n  ")
    if total >= LIMIT_MB:
        raise BundleError(f"{total:.1f} MB, at most {LIMIT_MB}: add names to LEFT_OUT, or packages to {options.given}")
    places = options.interpreter, sys.executable, shutil.which(f"python{options.python}")
    interpreter = next((place for place in places if place and version_of(place) == options.python), None)
    if interpreter is None:
        print(f"not imported: no Python {options.python} here; give one with --interpreter")
        return
    pinned = [f"{name}=={given[name]}" if given[name] else name for name in sorted(used)]
    loaded = check_imports(options.out, interpreter, pinned, options.arch)
    print(f"imported with {interpreter}: {len(MODULES)} modules; libraries of vLLM that load: {', '.join(loaded)}")


if __name__ == "__main__":
    main()
