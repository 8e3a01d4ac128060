#!/usr/bin/env python3
"""Builds everything that is published of one version: archives, a Python wheel, npm packages, check sums, release notes.

    python3 deploy/packages/build.py                                    # for this machine
    python3 deploy/packages/build.py --target x86_64-unknown-linux-gnu --target aarch64-unknown-linux-gnu
    python3 deploy/packages/build.py --binary target/debug/adjutant     # packs a program that is already built

It needs Python 3.11 and nothing else. It uses what is installed: `cargo-zigbuild` with `ziglang` (both are Python packages)
builds for old versions of glibc and for other processors, `cargo-cyclonedx` writes the bill of materials. What is missing is
said. The same program, `SOURCE_DATE_EPOCH` and version make the same files, byte for byte. docs/releasing.md explains it.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from time import gmtime

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = Path(__file__).resolve().parent
NAME = "adjutant"
# The glibc of the oldest systems that wheels can name, which cargo-zigbuild builds for.
OLDEST_GLIBC = (2, 17)
# The first time that a zip archive can hold.
EPOCH = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315_532_800)


class Problem(Exception):
    """What cannot be built, and what to do about it."""


@dataclass(frozen=True)
class Target:
    """A platform: how Rust, Python and npm call it, and how its programs begin."""

    triple: str
    machine: str
    os: str
    cpu: str
    magic: bytes

    @property
    def npm(self):
        libc = "-musl" if self.triple.endswith("musl") else ""
        return f"{NAME}-{self.os}-{self.cpu}{libc}"

    @property
    def is_elf(self):
        return self.os == "linux"


ELF = b"\x7fELF"
X86_64, AARCH64 = b"\x3e\x00", b"\xb7\x00"
MACHO_64 = b"\xcf\xfa\xed\xfe"
TARGETS = {
    target.triple: target
    for target in [
        Target("x86_64-unknown-linux-gnu", "x86_64", "linux", "x64", X86_64),
        Target("aarch64-unknown-linux-gnu", "aarch64", "linux", "arm64", AARCH64),
        Target("x86_64-unknown-linux-musl", "x86_64", "linux", "x64", X86_64),
        Target("aarch64-unknown-linux-musl", "aarch64", "linux", "arm64", AARCH64),
        Target("x86_64-apple-darwin", "x86_64", "darwin", "x64", b"\x07\x00\x00\x01"),
        Target("aarch64-apple-darwin", "arm64", "darwin", "arm64", b"\x0c\x00\x00\x01"),
    ]
}


def say(text):
    print(text, flush=True)


def run(*command, **options):
    say("$ " + " ".join(map(str, command)))
    if subprocess.run([str(part) for part in command], check=False, **options).returncode != 0:
        raise Problem(f"`{command[0]} {command[1] if len(command) > 1 else ''}` failed")


def output_of(*command):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Problem(f"`{' '.join(map(str, command))}` failed: {result.stderr.strip()}")
    return result.stdout.strip()


# The version and its notes.

def package():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]


def release_notes(version, must_be_released):
    """The section of the version in the change log; of what is not released yet if there is none."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        sections[heading.split()[0].strip("[]").removeprefix("v")] = body.strip()
    if version in sections:
        return f"# {NAME} {version}\n\n{sections[version]}\n"
    if must_be_released:
        raise Problem(f"CHANGELOG.md has no heading `## {version}`: rename `## Unreleased` before a release")
    say(f"release notes: CHANGELOG.md has no heading `## {version}`, so they are of `## Unreleased`")
    return f"# {NAME} {version} (not released)\n\n{sections.get('Unreleased', '')}\n"


# The program.

def installed_targets():
    library = Path(output_of("rustc", "--print", "sysroot")) / "lib/rustlib"
    return {folder.name for folder in library.iterdir() if (folder / "lib").is_dir()}


def host():
    lines = output_of("rustc", "-vV").splitlines()
    return next(line.removeprefix("host: ") for line in lines if line.startswith("host: "))


def host_without_rust():
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    return f"{machine}-apple-darwin" if sys.platform == "darwin" else f"{machine}-unknown-linux-gnu"


def build_program(target, is_host):
    """Builds the program with the profile `dist` and says how."""
    triple = target.triple
    arguments = ["--profile", "dist", "--locked", "--bin", NAME, "--target"]
    can_zig = shutil.which("cargo-zigbuild") is not None
    if triple.endswith("-linux-gnu") and can_zig:
        oldest = ".".join(map(str, OLDEST_GLIBC))
        say(f"{triple}: by cargo-zigbuild, for glibc {oldest} and later")
        run("cargo", "zigbuild", *arguments, f"{triple}.{oldest}", cwd=ROOT)
    elif can_zig and not is_host:
        say(f"{triple}: by cargo-zigbuild")
        run("cargo", "zigbuild", *arguments, triple, cwd=ROOT)
    elif is_host or triple.endswith("-musl") and triple.split("-")[0] == host().split("-")[0]:
        hint = "" if triple.endswith("-musl") else "; the program needs the glibc of this machine or a later one"
        say(f"{triple}: by cargo{hint}")
        run("cargo", "build", *arguments, triple, cwd=ROOT)
    else:
        raise Problem(f"{triple}: needs cargo-zigbuild on this machine (pip install cargo-zigbuild ziglang)")
    return ROOT / "target" / triple / "dist" / NAME


def check_program(target, binary, version):
    """Refuses a program of another platform or another version."""
    head = binary.read_bytes()[:20]
    is_right = head[:4] == ELF and head[18:20] == target.magic if target.is_elf else head[:8] == MACHO_64 + target.magic
    if not is_right:
        raise Problem(f"{binary} is no program for {target.triple}")
    if target.triple.split("-")[0] == host_without_rust().split("-")[0] and target.os == sys.platform:
        said = output_of(str(binary), "--version")
        if said.split()[-1] != version:
            raise Problem(f"{binary} says `{said}`, but Cargo.toml has version {version}")


def needed_glibc(binary):
    """The newest version of glibc of which the program uses a symbol; none for a static program."""
    found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", binary.read_bytes())
    return max((int(major), int(minor)) for major, minor in found) if found else None


# Archives, the same for the same content.

def tar_gz(path, files, level=9):
    """Writes a compressed archive of `(name, content, is_program)`."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, is_program in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), EPOCH, 0o755 if is_program else 0o644
            archive.addfile(entry, io.BytesIO(content))
    with open(path, "wb") as file, gzip.GzipFile(filename="", fileobj=file, compresslevel=level, mode="wb", mtime=0) as compressed:
        compressed.write(plain.getbuffer())
    say(f"made {path.name}")


def documents():
    return [(name, (ROOT / name).read_bytes(), False) for name in ["LICENSE", "README.md", "CHANGELOG.md"]]


def make_archive(out, target, program, version, sbom, level):
    """The archive in the layout that `cargo binstall` expects by the metadata in Cargo.toml."""
    top = f"{NAME}-{version}-{target.triple}"
    files = [(NAME, program, True), *documents(), *([("sbom.cdx.json", sbom, False)] if sbom else [])]
    tar_gz(out / f"{top}.tar.gz", [(f"{top}/{name}", content, flag) for name, content, flag in files], level)


# The Python wheel. It carries the program as a script, so that no Python runs between the user and the server.

def wheel_platform(target, glibc):
    if target.os == "darwin":
        return f"macosx_11_0_{target.machine}"
    if glibc is None:
        return f"manylinux_2_17_{target.machine}.manylinux2014_{target.machine}.musllinux_1_1_{target.machine}"
    if glibc <= OLDEST_GLIBC:
        return f"manylinux_2_17_{target.machine}.manylinux2014_{target.machine}"
    return f"manylinux_{glibc[0]}_{glibc[1]}_{target.machine}"


def make_wheel(out, target, program, glibc, facts, level):
    version = facts["version"]
    tag = wheel_platform(target, glibc)
    info = f"{NAME}-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {facts['description']}\n"
        f"License-Expression: {facts['license']}\nLicense-File: LICENSE\nRequires-Python: >=3.8\n"
        f"Description-Content-Type: text/markdown\n\n{(TEMPLATES / 'README.md').read_text()}"
    )
    tags = "".join(f"Tag: py3-none-{part}\n" for part in tag.split("."))
    files = [
        (f"{NAME}/__init__.py", (TEMPLATES / "python/__init__.py").read_bytes(), 0o644),
        (f"{NAME}/__main__.py", (TEMPLATES / "python/__main__.py").read_bytes(), 0o644),
        (f"{NAME}-{version}.data/scripts/{NAME}", program, 0o755),
        (f"{info}/METADATA", metadata.encode(), 0o644),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: {NAME} build.py\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644),
        (f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
    ]
    record = "".join(f"{name},sha256={digest_of(content)},{len(content)}\n" for name, content, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    path = out / f"{NAME}-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, gmtime(EPOCH)[:6])
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, (0o100000 | mode) << 16
            archive.writestr(entry, content, compresslevel=level)
    say(f"made {path.name}")


def digest_of(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


# The npm packages: one for each platform that carries the program, and one that finds the right of them.

def npm_package(out, manifest, files, level=9):
    text = json.dumps(manifest, indent=2) + "\n"
    files = [("package.json", text.encode(), False), ("LICENSE", (ROOT / "LICENSE").read_bytes(), False), *files]
    path = out / f"{manifest['name']}-{manifest['version']}.tgz"
    tar_gz(path, [(f"package/{name}", content, flag) for name, content, flag in files], level)


def make_platform_package(out, target, program, glibc, facts, level):
    manifest = {
        "name": target.npm,
        "version": facts["version"],
        "description": f"The program of {NAME} for {target.os} on {target.cpu}.",
        "license": facts["license"],
        "os": [target.os],
        "cpu": [target.cpu],
        **({"libc": ["glibc"]} if target.is_elf and glibc else {}),
        "preferUnplugged": True,
    }
    readme = f"The program of `{NAME}` for one platform. Install `{NAME}`, which depends on this package.\n"
    npm_package(out, manifest, [(f"bin/{NAME}", program, True), ("README.md", readme.encode(), False)], level)


def make_main_package(out, facts):
    """The package that users install. It depends on those platforms whose packages are in the folder."""
    version = facts["version"]
    names = sorted({target.npm for target in TARGETS.values()})
    there = [name for name in names if (out / f"{name}-{version}.tgz").exists()]
    manifest = {
        "name": NAME,
        "version": version,
        "description": facts["description"],
        "license": facts["license"],
        "bin": {NAME: f"bin/{NAME}.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {name: version for name in there},
    }
    files = [
        (f"bin/{NAME}.js", (TEMPLATES / "npm/launcher.js").read_bytes(), True),
        ("README.md", (TEMPLATES / "README.md").read_bytes(), False),
    ]
    npm_package(out, manifest, files)


# Beside them.

def bill_of_materials():
    if shutil.which("cargo-cyclonedx") is None:
        say("no bill of materials: cargo-cyclonedx is not installed")
        return None
    run("cargo", "cyclonedx", "--format", "json", "--override-filename", "sbom", cwd=ROOT)
    path = ROOT / "sbom.json"
    content = path.read_bytes()
    path.unlink()
    return content


def write_sums(out):
    files = sorted(path for path in out.iterdir() if path.suffix in {".gz", ".whl", ".tgz", ".json"})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def wanted_targets(arguments):
    """The targets to build for. One that is asked for and cannot be built is a failure; the others are named."""
    if arguments.binary:
        triples = arguments.target or [host_without_rust()]
        if len(triples) != 1:
            raise Problem("--binary is the program of one target")
    else:
        installed = installed_targets()
        triples = arguments.target or [host()]
        missing = [triple for triple in triples if triple not in installed]
        if missing:
            raise Problem(f"the standard library is missing for {', '.join(missing)}: rustup target add {' '.join(missing)}")
    unknown = [triple for triple in triples if triple not in TARGETS]
    if unknown:
        raise Problem(f"unknown targets: {', '.join(unknown)}; known are: {', '.join(TARGETS)}")
    left = [triple for triple in TARGETS if triple not in triples]
    say(f"targets: {', '.join(triples)}; not built: {', '.join(left)}")
    return [TARGETS[triple] for triple in triples]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", action="append", help="a target of Rust; may be repeated; this machine by default")
    parser.add_argument("--binary", type=Path, help="a program that is already built, instead of building it")
    parser.add_argument("--out", type=Path, default=ROOT / "target/packages", help="the folder for the files")
    parser.add_argument("--release", action="store_true", help="refuse to build what is not ready to be released")
    parser.add_argument("--no-sbom", action="store_true", help="leave out the bill of materials")
    parser.add_argument("--compression", type=int, default=9, choices=range(1, 10), help="1 is fast, 9 is small")
    arguments = parser.parse_args()
    facts = package()
    version = facts["version"]
    notes = release_notes(version, arguments.release)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sbom = None if arguments.no_sbom else bill_of_materials()
    if sbom is None and arguments.release:
        raise Problem("a release has a bill of materials: cargo install cargo-cyclonedx")
    for target in wanted_targets(arguments):
        is_host = arguments.binary is None and target.triple == host()
        binary = arguments.binary or build_program(target, is_host)
        check_program(target, binary, version)
        glibc = needed_glibc(binary) if target.is_elf else None
        if target.is_elf:
            say(f"{target.triple}: needs " + (f"glibc {glibc[0]}.{glibc[1]}" if glibc else "no libc"))
        program = binary.read_bytes()
        make_archive(out, target, program, version, sbom, arguments.compression)
        make_wheel(out, target, program, glibc, facts, arguments.compression)
        make_platform_package(out, target, program, glibc, facts, arguments.compression)
    make_main_package(out, facts)
    if sbom:
        (out / f"{NAME}-{version}.cdx.json").write_bytes(sbom)
    (out / "RELEASE-NOTES.md").write_text(notes)
    write_sums(out)
    say(f"everything is in {out}")


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(f"build.py: {problem}")
