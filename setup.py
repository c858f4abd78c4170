"""Builds the CPU kernels' shared library; everything else is in pyproject.toml.

Each instruction set's file gets the flags of its own, so this is no ordinary Extension.  A tree
that Penstock runs from gets the instruction sets of its machine's processor (`make serve`: the one
that this processor would choose), a wheel all of them.  Without a compiler the package installs all
the same, and the worker says that it uses the reference kernels.
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


NAMES = [instruction_set(name) for name in (*PORTABLE, *X86, *ARM) if name.startswith("isa_")]
"""Of all instruction sets, for any processor."""


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


CHOOSER = """#include <cstdio>
#include "types.h"
namespace pk {{
{tables}
FloatTiles avx512_floats() {{ return nullptr; }}
}}
extern "C" const char* pk_instruction_set();
int main() {{ std::puts(pk_instruction_set()); }}
"""
"""A program that says which instruction set the library's own choice, in interface.cpp, takes here,
of tables of kernels that have only names."""


def best_here(compiler: str, sources: list[str], folder: Path) -> str:
    """Returns the instruction set that this machine's library would use if it had these files'. An
    empty string where the compiler's programs don't run here.

    folder: for what is compiled.
    """
    kept = set(map(instruction_set, sources))
    tables = []
    for name in NAMES:
        table = f'static const Kernels named = {{"{name}"}}; return &named;'
        body = table if name in kept else "return nullptr;"
        tables.append(f"const Kernels* {name}_kernels() {{ {body} }}")
    source, program = folder / "chooser.cpp", folder / "chooser"
    source.write_text(CHOOSER.format(tables="\n".join(tables)))
    macro = FAMILIES.get(platform.machine().lower(), (None,))[0]
    # Of interface.cpp what the choice needs: its other functions call the rest of the library.
    unneeded = "-Wl,-dead_strip" if sys.platform == "darwin" else "-Wl,--gc-sections"
    files = [str(source), str(SOURCES / "interface.cpp")]
    flags = ["-std=c++17", "-w", "-ffunction-sections", '-DPK_SOURCES=""', f"-I{SOURCES}"]
    command = [compiler, *flags, *([f"-D{macro}=1"] if macro else []), *files, unneeded]
    try:
        subprocess.run([*command, "-o", str(program)], capture_output=True, check=True)
        said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.strip()


class BuildKernels(build_ext):
    """Compiles file by file; PENSTOCK_SANITIZE adds sanitizers (`address,undefined`) and
    PENSTOCK_CXXFLAGS flags behind all others.

    PENSTOCK_INSTRUCTION_SETS says which to compile: names (`portable,avx2`), `best` for the one
    that this machine would use, `none` to leave what is there as it is. Without it a build in place
    has those of this machine's processor, any other one all.
    """

    def run(self) -> None:
        self._in_place = bool(self.inplace or self.editable_mode)  # It isn't told any more below.
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if self._asked() == "none":
            return
        sys.stderr.write("penstock: compiling the kernels, some minutes\n")
        try:
            self._build(ext)
        except Exception as error:
            sys.stderr.write(f"penstock: the CPU kernels are not built: {error}\n")
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)

    def _asked(self) -> str:
        return os.environ.get("PENSTOCK_INSTRUCTION_SETS", "")

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
        made = Path(self.build_temp)
        made.mkdir(parents=True, exist_ok=True)
        wanted, portable = self._wanted({**PORTABLE, **special}, made), PORTABLE
        if self._in_place and wanted != "portable":
            portable = dict.fromkeys(PORTABLE, QUICKLY)
        sources, stub = left_out({**portable, **special, **PLAIN}, wanted)
        files = {SOURCES / name: flags for name, flags in sources.items()}
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

    def _wanted(self, sources: dict[str, list[str]], folder: Path) -> str:
        """Names of instruction sets, with commas between; empty: all. folder: for what it makes."""
        asked = self._asked()
        if asked and asked != "best":
            if unknown := set(asked.split(",")).difference(NAMES):
                raise ValueError(
                    f"PENSTOCK_INSTRUCTION_SETS has {', '.join(sorted(unknown))}; allowed are "
                    f"best, none, and of {', '.join(sorted(NAMES))} any with commas between"
                )
            return asked
        if not asked and not self._in_place:
            return ""
        compiler = self.compiler.compiler_so_cxx[0]
        usable = of_this_processor(compiler, sources)
        best = best_here(compiler, usable, folder) if asked else ""
        return best or ",".join(map(instruction_set, usable))


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
