"""A PyTorch without CUDA that runs CUDA's code paths on tensors without data.

Fake tensors have a device and no data, so most of PyTorch takes `cuda` for what it is told. Two things do not: the
autograd engine asks a device guard how many devices there are, and autocast asks whether CUDA is there. A guard and
hooks that say "one device" are registered here; both interfaces are public headers of PyTorch
(c10/core/impl/FakeGuardImpl.h, ATen/detail/CUDAHooksInterface.h). They are compiled once, and kept in the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from vramplan.errors import UsageError

SOURCE = r"""
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace at {
// what autograd and autocast ask before they believe in a device
struct OneDeviceWithoutData final : CUDAHooksInterface {
  explicit OneDeviceWithoutData(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return hasCUDA(); }
  bool isAvailable() const override { return deviceCount() > 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex index) const override { return index == 0; }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, OneDeviceWithoutData);
}

extern "C" int vramplan_pretend() {
  using Guard = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
  c10::impl::registerDeviceGuard(c10::DeviceType::CUDA, new Guard());
  return at::detail::getCUDAHooks().hasCUDA() ? 1 : 0;
}
"""


def pretend() -> None:
    """Register the guard and the hooks. To be called before the process imports torch.

    Raises UsageError where this PyTorch is built for CUDA (its own hooks would answer "no device"), or without a
    compiler.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported first")
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise UsageError("PyTorch is not installed", key="--trace", hint="pip install 'vramplan[measure]'")
    root = Path(found.origin).parent
    if any((root / "lib").glob("libtorch_cuda*")) or any((root / "lib").glob("libtorch_hip*")):
        hint = "in an environment of its own: pip install torch --index-url https://download.pytorch.org/whl/cpu"
        raise UsageError(
            "traces with the CPU build of PyTorch, and this one is built for a GPU", key="--trace", hint=hint
        )
    library = ctypes.CDLL(str(_compiled(root)))
    if not library.vramplan_pretend():
        raise UsageError("this PyTorch does not take the hooks of a trace", key="--trace", hint="PyTorch 2.9 or newer")


def _compiled(root: Path) -> Path:
    """The library for this PyTorch; compiled if it is not in the cache."""
    version = (root / "version.py").read_text("utf-8")
    name = hashlib.sha256(f"{version}{root}{sys.version}{sysconfig.get_platform()}{SOURCE}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramplan"
    target = cache / f"trace-{name}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UsageError("needs a C++ compiler, once", key="--trace", hint="install g++, or set CXX")
    cache.mkdir(parents=True, exist_ok=True)
    beside = f"trace-{name}-{os.getpid()}"  # another process may compile it at the same time
    source, library = cache / f"{beside}.cpp", cache / f"{beside}.so"
    source.write_text(SOURCE, "utf-8")
    words = [
        compiler,
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{root / 'include'}",
        str(source),
        "-o",
        str(library),
    ]
    words += [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    source.unlink()
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it says nothing")
        raise UsageError(f"the compiler fails: {said.strip()[:200]}", key="--trace", hint="set CXX to another one")
    os.replace(library, target)
    return target


def autocast_believes() -> None:
    """Let torch.autocast("cuda") be entered; call it after torch is imported."""
    import torch
    import torch.cuda.amp.common as common

    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True
