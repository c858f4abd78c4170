"""Builds the CPU kernels' shared library; everything else is in pyproject.toml.

Each instruction set's file gets the flags of its own, so this is no ordinary Extension.  A tree
that Penstock runs from gets the instruction sets of its machine's processor, a wheel all of them.
Without a compiler the package installs all the same, and the worker says that it uses the reference
kernels.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("kernels/penstock_kernels/cpu/csrc")
LIBRARY = "penstock_kernels.cpu.libpenstock_cpu"

# A product and a sum are one operation only where the source says so: the same bits from any
# compiler. -g0: Python's own flags have -g, which takes time and most of the library's size.
COMMON = [
    *("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fvisibility=hidden"),
    "-g0",
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512VNNI = [
    *AVX2,
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    # GCC's own avx512fintrin.h leaves registers undefined on purpose, and GCC 12 warns of each use.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]
PORTABLE: dict[str, list[str]] = {"isa_portable.cpp": []}
QUICKLY = ["-O2"]
"""For plain C++ where the processor has better, and only tests use it. -O3 unrolls its loops over
lanes, which takes nearly three times as long to compile and makes it 2 to 4 times as fast. The bits
are the same."""
PLAIN: dict[str, list[str]] = {
    name: []
    for name in (
        *("sampler.cpp", "program.cpp", "interface.cpp", "pack.cpp", "philox.cpp"),
        *("kept.cpp", "runs.cpp"),
    )
}
X86 = {
    "isa_avx2.cpp": AVX2,
    "isa_avxvnni.cpp": [*AVX2, "-mavxvnni"],
    "isa_avx512vnni.cpp": AVX512VNNI,
    "isa_amx.cpp": [*AVX512VNNI, *("-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")],
    "isa_avx512.cpp": [*AVX512VNNI, "-mavx512bf16"],
    "wide_floats.cpp": [*AVX2, "-mavx512f", *AVX512VNNI[-2:]],
}
OLD_LOG = """#include <features.h>
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver log,log@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver log,log@GLIBC_2.17");
#endif
"""
"""A header. glibc 2.29 has another version of log, which differs in errno alone; with the earlier
one, a wheel is for all machines that torch's wheels are for."""
TAKES_LOG = "sampler.cpp"
ARM = {
    "isa_neon.cpp": ["-march=armv8.2-a+dotprod"],
    "isa_neoni8mm.cpp": ["-march=armv8.2-a+dotprod+i8mm"],
}
FAMILIES = {
    "x86_64": ("PK_X86", X86),
    "amd64": ("PK_X86", X86),
    "aarch64": ("PK_ARM", ARM),
    "arm64": ("PK_ARM", ARM),
}
"""Of processors, by the compilers' names: the macro that says so, and the files for them alone. Any
other has the portable kernels."""


def instruction_set(file: str) -> str:
    """Its name, from that of its file."""
    return file.removeprefix("isa_").removesuffix(".cpp")


def left_out(sources: dict[str, list[str]], wanted: str) -> tuple[dict[str, list[str]], str]:
    """wanted: names of instruction sets, with commas between; empty: all. Returns the files to
    compile, and the contents of one more, by which the library says that it lacks the others."""
    kept = wanted.split(",")
    missing = [
        name
        for name in sources
        if wanted and name.startswith("isa_") and instruction_set(name) not in kept
    ]
    functions = [f"{instruction_set(name)}_kernels" for name in missing]
    defined = "".join(f"const Kernels* {each}() {{ return nullptr; }}\n" for each in functions)
    stub = f'#include "types.h"\nnamespace pk {{\n{defined}}}\n' if missing else ""
    return {name: flags for name, flags in sources.items() if name not in missing}, stub


def of_this_processor(compiler: str, sources: dict[str, list[str]]) -> list[str]:
    """Returns the files whose instructions this machine's processor has, as the compiler sees it:
    -march=native turns on all that their own flags do. All of them where it doesn't say, as one
    that makes code for another machine."""
    plain, native = _macros(compiler, []), _macros(compiler, ["-march=native"])
    if not native:
        return list(sources)
    return [
        name
        for name, flags in sources.items()
        if _macros(compiler, [flag for flag in flags if flag.startswith("-m")]) - plain <= native
    ]


def _macros(compiler: str, flags: list[str]) -> set[str]:
    """The names that the compiler itself defines; none where it doesn't take the flags."""
    asked = [compiler, *flags, *("-dM", "-E", "-x", "c++", os.devnull)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return {line.split()[1] for line in lines if line.startswith("#define ")}


class BuildKernels(build_ext):
    """Compiles file by file; PENSTOCK_SANITIZE adds sanitizers (`address,undefined`),
    PENSTOCK_CXXFLAGS flags behind all others, and PENSTOCK_INSTRUCTION_SETS (`portable,avx2`)
    leaves out all other instruction sets, as a build in place does with those that this machine's
    processor lacks."""

    def run(self) -> None:
        self._in_place = bool(self.inplace or self.editable_mode)  # It isn't told any more below.
        super().run()

    def build_extension(self, ext: Extension) -> None:
        sys.stderr.write("penstock: compiling the kernels, some minutes\n")
        try:
            self._build(ext)
        except Exception as error:
            sys.stderr.write(f"penstock: the CPU kernels are not built: {error}\n")
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def _target(self) -> str:
        """The family of processors that the compiler makes code for: CXX may be one for another
        machine than this one."""
        asked = [self.compiler.compiler_so_cxx[0], "-dumpmachine"]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            said = platform.machine()  # Not every compiler answers.
        return said.partition("-")[0].strip().lower()

    def _build(self, ext: Extension) -> None:
        macro, special = FAMILIES.get(self._target(), (None, {}))
        sanitizers = os.environ.get("PENSTOCK_SANITIZE", "")
        # -Og comes last and counts: sanitizers at -O3 take minutes to compile.
        checks = [f"-fsanitize={sanitizers}", "-g1", "-fno-omit-frame-pointer", "-Og"]
        extra = checks if sanitizers else []
        extra = [*extra, *os.environ.get("PENSTOCK_CXXFLAGS", "").split()]

        digest = runpy.run_path(str(SOURCES.with_name("sources.py")))["digest"](SOURCES)
        macros = [("PK_SOURCES", f'"{digest}"'), *([(macro, "1")] if macro else [])]

        def compile_one(file: Path, flags: list[str]) -> list[str]:
            return self.compiler.compile(
                [str(file)],
                output_dir=self.build_temp,
                macros=macros,
                include_dirs=[str(SOURCES)],
                extra_postargs=[*COMMON, *flags, *extra],
            )

        # What takes longest comes first, plain C++ most of all; a thread waits for its compiler.
        wanted, portable = os.environ.get("PENSTOCK_INSTRUCTION_SETS", ""), PORTABLE
        if not wanted and self._in_place:
            usable = of_this_processor(self.compiler.compiler_so_cxx[0], {**PORTABLE, **special})
            wanted = ",".join(map(instruction_set, usable))
            if special and len(usable) > 1:
                portable = dict.fromkeys(PORTABLE, QUICKLY)
        sources, stub = left_out({**portable, **special, **PLAIN}, wanted)
        files = {SOURCES / name: flags for name, flags in sources.items()}
        made = Path(self.build_temp)
        made.mkdir(parents=True, exist_ok=True)
        (made / "old_log.h").write_text(OLD_LOG)
        files[SOURCES / TAKES_LOG] = ["-include", str(made / "old_log.h")]
        if stub:
            (made / "left_out.cpp").write_text(stub)
            files[made / "left_out.cpp"] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = list(pool.map(compile_one, files, files.values()))
        objects = [path for each in compiled for path in each]
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            target_lang="c++",
            extra_postargs=["-fopenmp", *extra],
        )


class PlatformWheel(bdist_wheel):
    """The library is loaded by ctypes, so that a wheel fits every Python of its platform.  It holds
    the code of each instruction set, and chooses when it is loaded."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(
        ext_modules=[
            Extension(
                LIBRARY,
                [str(SOURCES / name) for name in [*PORTABLE, *X86, *ARM, *PLAIN]],
                language="c++",
                optional=True,  # An installation in place would look for what isn't there.
            )
        ],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
    )
