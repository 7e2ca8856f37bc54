#!/usr/bin/env python3
"""What users install: that it is complete, works from where it lies, and goes without a trace.

Made of the release build that is there. Nothing is installed on this machine: all of it goes to folders of
its own."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import checks
from run import ROOT, VENV, WEIR

BUILD = WEIR.parent
EXAMPLES = ROOT / "packaging/examples"
SECONDS = 120
MIB = 1 << 20

# The tree that `make install` makes, below PREFIX.
TREE = """
bin/weir
include/weir.h
lib/libweir.a
lib/libweir.so
lib/libweir.so.0
lib/pkgconfig/weir.pc
lib/weir/libweir_preload.so
share/bash-completion/completions/weir
share/doc/weir/CHANGELOG.md
share/doc/weir/LICENSE-APACHE
share/doc/weir/LICENSE-MIT
share/doc/weir/README.md
share/doc/weir/examples/Dockerfile
share/doc/weir/examples/Dockerfile.dockerignore
share/doc/weir/examples/compose.yaml
share/doc/weir/examples/kubernetes.yaml
share/doc/weir/examples/weir-job.service
share/doc/weir/examples/weir-serve.service
share/doc/weir/third-party-licences.txt
share/fish/vendor_completions.d/weir.fish
share/man/man1/weir-bench.1
share/man/man1/weir-completions.1
share/man/man1/weir-config.1
share/man/man1/weir-demo.1
share/man/man1/weir-doctor.1
share/man/man1/weir-jupyter.1
share/man/man1/weir-man.1
share/man/man1/weir-run.1
share/man/man1/weir-serve.1
share/man/man1/weir-set.1
share/man/man1/weir-stat.1
share/man/man1/weir-top.1
share/man/man1/weir.1
share/zsh/site-functions/_weir
""".split()

# Works on twice its budget, and says whether the library is there and every byte was right.
JOB = """
data = bytearray(64 << 20)
for at in range(0, len(data), 4096):
    data[at : at + 4096] = (b"%07d " % (at >> 12)) * 512
right = all(data[at : at + 8] == b"%07d " % (at >> 12) for at in range(0, len(data), 4096))
print("libweir_preload.so" in open("/proc/self/maps").read(), right)
"""


def told(command, **options):
    """What a command says on stdout; AssertionError when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        **{"stdin": subprocess.DEVNULL, **options},
    )
    assert done.returncode == 0, f"{command}: status {done.returncode}: {(done.stdout + done.stderr)[-800:]}"
    return done.stdout


def make(goal, **variables):
    """Runs a goal of the Makefile on the build under test."""
    words = [f"{name}={value}" for name, value in {"BUILD": BUILD, **variables}.items()]
    return told(["make", "-s", "-C", ROOT, goal, *words])


def installed(folder):
    """The folder below which everything was installed into a folder."""
    make("install", DESTDIR=folder, PREFIX="/usr")
    return folder / "usr"


def entries(folder, files_only=False):
    """Paths of everything below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file() or not files_only)
    return sorted(str(path.relative_to(folder)) for path in found)


def works(weir, python=sys.executable, **options):
    """Runs a program larger than its budget, without variables that would help to find the library."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "LD_"))}
    command = [weir, "run", "--quiet", "--memory", "32M", "--", python, "-c", JOB]
    said = told(command, env=env, cwd="/", **options).strip()
    assert said == "True True", f"the library is loaded, the data is right: {said}"


def the_installed_tree_is_complete_and_works_from_anywhere(folder):
    make("install", DESTDIR=folder / "stage", PREFIX="/opt/weir")
    (folder / "stage/opt/weir").rename(folder / "moved")
    there = entries(folder / "moved", files_only=True)
    assert there == TREE, f"differs: {sorted(set(there) ^ set(TREE))}"
    for path in there:
        mode = (folder / "moved" / path).stat().st_mode & 0o777
        assert mode == (0o755 if path == "bin/weir" else 0o644), f"{path}: {mode:o}"
    works(folder / "moved/bin/weir")


def binary_and_library_are_stripped_and_small(folder):
    usr = installed(folder)
    for name in ("bin/weir", "lib/weir/libweir_preload.so", "lib/libweir.so"):
        path = usr / name
        assert path.stat().st_size < 4 * MIB, f"{name}: {path.stat().st_size} bytes"
        sections = told(["readelf", "--wide", "--section-headers", path])
        assert ".debug_info" not in sections and ".symtab" not in sections, f"{name} is not stripped"


def the_c_library_is_where_its_description_says(folder):
    usr = installed(folder)
    (folder / "usr").rename(folder / "moved")
    lines = (folder / "moved/lib/pkgconfig/weir.pc").read_text().splitlines()
    said = dict(line.split(": ", 1) for line in lines if ": " in line)
    version = told([WEIR, "version"])
    assert said["Name"] == "weir" and said["Version"] in version, f"{said} {version}"
    prefix = str(folder / "moved/lib/pkgconfig/../..")
    words = [word for key in ("Cflags", "Libs") for word in said[key].replace("${prefix}", prefix).split()]
    guide = re.search(r"```c\n(.*?)```", (ROOT / "docs/c.md").read_text(), re.S).group(1)
    (folder / "guide.c").write_text(guide)
    told(["cc", "-o", folder / "guide", folder / "guide.c", *words])
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder / "moved/lib")}
    assert " MiB of data in " in told([folder / "guide"], env=env)
    assert not usr.exists()


def every_command_has_a_manual_page_that_can_be_shown(folder):
    shown = re.search(r"Commands:\n(.*?)\n\n", told([WEIR, "--help"]), re.S).group(1)
    commands = {line.split()[0] for line in shown.splitlines()} - {"help", "version"}
    pages = {path.split("weir-")[1].removesuffix(".1") for path in TREE if "man1/weir-" in path}
    assert pages == commands, f"differs: {pages ^ commands}"
    version = told([WEIR, "version"]).strip()
    for page in sorted((installed(folder) / "share/man/man1").iterdir()):
        text = told(["sh", "-c", 'man --warnings --local-file "$0" 2>&1', page])
        assert "SYNOPSIS" in text and ": warning:" not in text, f"{page.name}: {text[:300]}"
        assert version in text.rstrip().splitlines()[-1], f"{page.name}: {text[-100:]}"


def completions_are_programs_of_their_shells(folder):
    share = installed(folder) / "share"
    told(["bash", "-n", share / "bash-completion/completions/weir"])
    assert (share / "zsh/site-functions/_weir").read_text().startswith("#compdef weir\n")
    assert "complete -c weir" in (share / "fish/vendor_completions.d/weir.fish").read_text()


def licences_of_all_that_is_linked_are_there(folder):
    text = (installed(folder) / "share/doc/weir/third-party-licences.txt").read_text()
    for crate in ("clap", "ring", "talc", "lz4-sys", "zstd-sys", "tikv-jemalloc-sys", "libc"):
        assert re.search(rf"^{crate} \d[^ ]*: \S+$", text, re.M), f"no licence of {crate}"
    assert "Jason Evans" in text and "Meta Platforms" in text, "those of jemalloc and zstd themselves"


def uninstall_leaves_everything_as_it_was(folder):
    for path in TREE:
        parents = (folder / "usr" / path).parents
        usual = next(parent for parent in parents if parent.name not in ("weir", "examples"))
        usual.mkdir(parents=True, exist_ok=True)
    other = folder / "usr/bin/weird"
    other.write_text("somebody else's")
    before = entries(folder)
    installed(folder)
    installed(folder)
    assert len(entries(folder)) > len(before)
    make("uninstall", DESTDIR=folder, PREFIX="/usr")
    assert entries(folder) == before, f"differs: {set(entries(folder)) ^ set(before)}"
    make("uninstall", DESTDIR=folder, PREFIX="/usr")


def without_a_build_install_says_what_to_do(folder):
    try:
        make("install", BUILD=folder, DESTDIR=folder / "stage")
    except AssertionError as reason:
        assert "first `make build`" in str(reason), reason
    else:
        raise AssertionError("it installed what is not there")
    assert not (folder / "stage").exists()


def debian_package(folder):
    """Path of the package of this build, made in a folder."""
    make("deb", OUT=folder)
    (package,) = folder.glob("weir_*.deb")
    return package


def debian_root(folder, packages):
    """A folder as root of a system that has these packages and what they need, and nothing else."""
    system = dict(line.split("=", 1) for line in open("/etc/os-release").read().splitlines() if "=" in line)
    etc = pathlib.Path("/etc/apt")
    named = [etc / "sources.list", *etc.glob("sources.list.d/*")]
    named = [path for path in named if path.suffix in (".list", ".sources") and path.is_file()]
    sources = [path for path in named if path.stat().st_size]
    extract = ["mmdebstrap", "--quiet", "--mode=root", "--variant=extract", f"--include={','.join(packages)}"]
    told([*extract, system["VERSION_CODENAME"], folder, *sources])
    (folder / "proc").mkdir(exist_ok=True)
    return folder


def in_debian():
    """Everything that the package has and whose path names Weir, in Debian's places."""
    own = {path.replace("site-functions", "vendor-completions") for path in TREE if "LICENSE" not in path}
    packed = {re.sub(r"(\.1|licences\.txt)$", r"\1.gz", path) for path in own}
    packed = {path.replace("CHANGELOG.md", "changelog.gz") for path in packed}
    packed |= {"share/doc/weir/copyright", "share/doc/weir/changelog.Debian.gz"}
    packed |= {"share/doc/weir", "share/doc/weir/examples", "lib/weir"}
    return sorted(f"usr/{path}" for path in packed)


def the_debian_package_runs_as_nobody_with_what_it_depends_on_and_goes_without_a_trace(folder):
    package = debian_package(folder)
    depends = told(["dpkg-deb", "--field", package, "Depends"]).strip()
    root = debian_root(folder / "root", re.findall(r"[a-z][a-z0-9+.-]+(?=[ ,]|$)", depends))
    # The root's packages are unpacked, but not in the list of the installed.
    dpkg = ["dpkg", f"--root={root}", "--force-depends", "--log=/dev/null"]
    of_dpkg = f"{root.name}/var/lib/dpkg"
    before = [path for path in entries(folder) if not path.startswith(of_dpkg)]
    told([*dpkg, "--install", package])
    there = sorted(path for path in entries(root) if "weir" in path and not path.startswith("var/lib/dpkg"))
    assert there == in_debian(), f"differs: {sorted(set(there) ^ set(in_debian()))}"
    nobody = ["chroot", "--userspec=65534:65534", root]
    alone = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc"]
    demo = ["/usr/bin/weir", "demo", "--memory", "32M"]
    said = told([*alone, *nobody, *demo], cwd="/", env={"PATH": "/usr/sbin:/usr/bin"})
    assert "All results verified" in said, said
    told([*dpkg, "--purge", "weir"])
    after = [path for path in entries(folder) if not path.startswith(of_dpkg)]
    assert after == before, f"differs: {set(after) ^ set(before)}"
    assert not list((root / "var/lib/dpkg/info").glob("weir*"))


def the_wheel_brings_the_command_into_a_clean_environment_and_goes_without_a_trace(folder):
    make("wheel", OUT=folder, PYTHON=sys.executable)
    (wheel,) = folder.glob("weir-*.whl")
    assert wheel.stat().st_size < 12 * MIB, f"{wheel.stat().st_size} bytes"
    venv = folder / "venv"
    told([sys.executable, "-m", "venv", venv])
    python, pip = venv / "bin/python", [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    before = [path for path in entries(venv, files_only=True) if "__pycache__" not in path]
    told([*pip, "install", "--quiet", "--no-index", wheel])
    works(venv / "bin/weir", python)
    (folder / "job.py").write_text(JOB + "import sys\nprint(sys.executable, *sys.argv[1:])\n")
    job = ["job.py", "--memory", "x.py"]
    for words in (["-q", "--memory", "32M"], ["--memory=32M", "--quiet", "--"], ["-m32M", "-qv"]):
        said = told([python, "-m", "weir", "run", *words, *job], cwd=folder).split()
        assert said == ["True", "True", str(python), "--memory", "x.py"], f"{words}: {said}"
    assert told([python, "-m", "weir", "run", "-q", "-m", "32M", "true", "a.py"]) == ""
    assert told([python, "-m", "weir", "version"]) == told([WEIR, "version"])
    use = "import weir; r = weir.Pool('8MiB').region(16 << 20); r.view()[:] = bytes(16 << 20); print(len(r))"
    assert told([python, "-c", use], cwd="/").strip() == str(16 << 20)
    told([*pip, "uninstall", "--quiet", "--yes", "weir"])
    after = [path for path in entries(venv, files_only=True) if "__pycache__" not in path]
    assert after == before, f"differs: {set(after) ^ set(before)}"


def python_m_weir_knows_every_option_without_a_value(_folder):
    """Else it would take the option's neighbour for its value, and not find the script."""
    sys.path.insert(0, str(ROOT / "packaging/python"))
    from weir.__main__ import FLAGS

    listed = re.findall(r"^ +(-.*)$", told([WEIR, "run", "--help"]), re.M)
    alone = {word for line in listed if "<" not in line for word in re.split(", *", line.strip())}
    assert FLAGS == alone, f"differs: {FLAGS ^ alone}"


def yaml(name):
    """What an example says, as Python values: a list of its documents."""
    code = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
    assert (VENV / "bin/python").exists(), f"no Python environment at {VENV}: run `make venv`"
    return json.loads(told([VENV / "bin/python", "-c", code], stdin=(EXAMPLES / name).open()))


def accepted(words, env=()):
    """Runs what an example runs, with the same options and variables and another program. Its swap file may
    be larger than what is free here."""
    assert words[:2] == ["weir", "run"] and "--" in words, f"not a command of Weir's: {words}"
    options = [re.sub(r"^\d+G$", "64M", word) for word in words[2 : words.index("--")]]
    code = "import os; print(os.environ['WEIR_MEMORY'])"
    command = [WEIR, "run", *options, "--", sys.executable, "-c", code]
    return told(command, env={**os.environ, **dict(env)}).strip()


def the_image_is_made_of_what_make_install_installs(folder):
    text = (EXAMPLES / "Dockerfile").read_text()
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    runs = [shlex.split(rest) for word, rest in steps if word == "RUN"]
    assert runs[0] == ["make", "build"], runs
    goal, *variables = runs[1][1:]
    assert goal == "install" and runs[2:] == []
    values = dict(word.split("=", 1) for word in variables)
    make(goal, **{**values, "DESTDIR": f"{folder}{values['DESTDIR']}"})
    assert f"COPY --from=build {values['DESTDIR']}/ /" in text
    assert entries(folder / "tree/usr/local", files_only=True) == TREE
    (entry,) = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    variables = dict(rest.split("=", 1) for word, rest in steps if word == "ENV")
    assert int(accepted(entry, variables)) > 0


def the_compose_file_gives_the_job_memory_and_a_disk(_folder):
    (compose,) = yaml("compose.yaml")
    job = compose["services"]["job"]
    context = (EXAMPLES / job["build"]["context"]).resolve()
    assert (context / job["build"]["dockerfile"]).samefile(EXAMPLES / "Dockerfile")
    assert job["mem_limit"] == job["memswap_limit"], "the kernel is not to swap"
    named = [volume.split(":")[0] for volume in job["volumes"] if not volume.startswith(".")]
    assert set(named) == set(compose["volumes"])
    assert "swap:/var/tmp" in job["volumes"], "where the swap file is by default"
    assert accepted(["weir", "run", "--", *job["command"]], job["environment"])


def the_kubernetes_job_has_room_for_its_swap_file(_folder):
    (job,) = yaml("kubernetes.yaml")
    pod = job["spec"]["template"]["spec"]
    assert (job["apiVersion"], job["kind"], pod["restartPolicy"]) == ("batch/v1", "Job", "Never")
    (swap,) = pod["volumes"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["volumeMounts"] == [{"name": swap["name"], "mountPath": "/var/tmp"}]
        assert container["resources"]["limits"]["memory"] == "2Gi"
    (doctor,), (main,) = pod["initContainers"], pod["containers"]
    assert doctor["command"] == ["weir", "doctor"] and doctor["image"] == main["image"]
    words = main["command"]
    gigabytes = int(words[words.index("--swap") + 1].removesuffix("G"))
    assert gigabytes < int(swap["emptyDir"]["sizeLimit"].removesuffix("Gi"))
    assert accepted([*words, *main["args"]])


def the_systemd_units_are_accepted(folder):
    usr = installed(folder)
    for unit in ("weir-job.service", "weir-serve.service"):
        text = (EXAMPLES / unit).read_text()
        command = shlex.split(re.search(r"^ExecStart=/usr/bin/(.*)$", text, re.M).group(1))
        if command[1] == "run":
            assert accepted(command) == str(64 << 20)
        else:
            told([usr / "bin/weir", command[1], "--help"])
        (folder / unit).write_text(text.replace("=/usr/bin/weir", f"={usr}/bin/weir"))
        told(["systemd-analyze", "verify", "--man=no", folder / unit])


CHECKS = [
    the_installed_tree_is_complete_and_works_from_anywhere,
    binary_and_library_are_stripped_and_small,
    the_c_library_is_where_its_description_says,
    every_command_has_a_manual_page_that_can_be_shown,
    completions_are_programs_of_their_shells,
    licences_of_all_that_is_linked_are_there,
    uninstall_leaves_everything_as_it_was,
    without_a_build_install_says_what_to_do,
    the_debian_package_runs_as_nobody_with_what_it_depends_on_and_goes_without_a_trace,
    the_wheel_brings_the_command_into_a_clean_environment_and_goes_without_a_trace,
    python_m_weir_knows_every_option_without_a_value,
    the_image_is_made_of_what_make_install_installs,
    the_compose_file_gives_the_job_memory_and_a_disk,
    the_kubernetes_job_has_room_for_its_swap_file,
    the_systemd_units_are_accepted,
]


def readable(_faults, folder):
    """The folder of a check: everybody may read it."""
    os.chmod(folder, 0o755)
    return folder


if __name__ == "__main__":
    make("licences")
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(readable), modes=("auto",)))
