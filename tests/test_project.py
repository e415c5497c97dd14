"""The project's own promises: import direction, light imports, files that say the same thing."""

from __future__ import annotations

import ast
import csv
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import optpipe_sim
from optpipe_sim.schedules import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "optpipe_sim"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Each row may import from itself and from the rows above it.
LAYERS = (
    {"errors", "ops"},
    {"units", "files"},
    {"compiled"},
    {"shape", "stage_cost", "steps", "schedule", "profile", "profile_io"},
    {"trace"},
    {"schedules", "sim", "analyse"},
    {"solve"},
    {"names"},
    {"costs", "plot", "export"},
    {"study"},
    {"runtime"},
    {"cli", "__main__"},
)
LAYER = {name: at for at, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere, as ``sim.engine``."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = ("optpipe_sim", *here)[: -node.level] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    inside = {
        name.removeprefix("optpipe_sim.") for name in found if name.startswith("optpipe_sim.")
    }
    return {name for name in inside if _file(name)}


def _file(dotted: str) -> Path | None:
    stem = PACKAGE.joinpath(*dotted.split("."))
    return next((f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f.exists()), None)


MODULES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        for name in imports(path)
        if LAYER[name.split(".")[0]] > LAYER[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
    ]
    assert not wrong
    assert sum(len(imports(path)) for path in MODULES) > 50  # the reader above reads


def test_the_checker_does_not_know_the_simulator() -> None:
    seen, todo = set(), ["analyse.check"]
    while todo:
        name = todo.pop()
        seen.add(name)
        todo += imports(_file(name)) - seen
    assert {name for name in seen if name.split(".")[0] == "sim"} == set()
    assert "schedule" in seen


def test_torch_only_in_the_runtime_and_the_runtime_only_for_the_command_line() -> None:
    parts = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    seen = {
        part for path, part in parts.items() if any(n.startswith("runtime") for n in imports(path))
    }
    with_torch = {part for path, part in parts.items() if _imports_torch(path)}
    assert seen <= {"runtime", "cli"}
    assert with_torch <= {"runtime"}
    assert not any(
        n.startswith("study") for path in MODULES if parts[path] == "runtime" for n in imports(path)
    )


def _imports_torch(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import optpipe_sim;"
        "print(time.perf_counter() - start);"
        "print(*sorted({'numpy', 'torch', 'matplotlib', 'numba', 'simpy', 'rich'} & set(sys.modules)))"
    )
    runs = [_python("-c", code).split("\n") for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in runs) < 0.3
    assert runs[0][1] == ""


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['optpipe-sim', '--help']; from optpipe_sim.cli import main;"
        "assert main() == 0; print(sorted({'numpy', 'torch', 'matplotlib', 'numba'} & set(sys.modules)))"
    )
    assert _python("-c", code).strip().endswith("[]")


def _python(*words: str) -> str:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True
    ).stdout


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == PROJECT["version"] == optpipe_sim.__version__
    assert citation["license"] == PROJECT["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_conda_environment_says_what_pyproject_says() -> None:
    conda_names = {
        "torch": "pytorch-cpu",
        "types-PyYAML": "types-pyyaml",
        "ortools": "ortools-python",
    }
    wanted = set()
    for requirement in sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"]):
        name, version = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        wanted.add(conda_names.get(name, name) + version)
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    given = {entry for entry in environment["dependencies"] if isinstance(entry, str)}
    (python,) = (entry for entry in given if entry.startswith("python="))
    assert given - {python, "pip"} == wanted
    assert pip == ["-e ."]
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert int(low) <= int(python.removeprefix("python=3.")) < int(high)


def test_readme_names_every_schedule_and_command() -> None:
    from optpipe_sim.cli.parser import EXAMPLES

    readme = (ROOT / "README.md").read_text()
    missing = [name for name in (*REGISTRY, *EXAMPLES) if f"`{name}" not in readme]
    assert not missing


def test_readme_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_code_prints_what_it_says(monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    code, output = re.search(
        r"```python\n(.*?)```\s+```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    exec(code, {})
    assert capsys.readouterr().out == output


def test_readme_refusals_are_the_real_ones(monkeypatch, capsys) -> None:
    from optpipe_sim.cli import main

    monkeypatch.chdir(ROOT)
    shown = re.findall(
        r"^\$ optpipe-sim (.*)\n((?:optpipe-sim.*\n)+)",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(shown) >= 2
    for line, refusal in shown:
        assert main(line.split()) == 2
        assert capsys.readouterr().err == refusal


def test_readme_shows_the_results_that_are_there() -> None:
    with (ROOT / "results" / "zb_tables.csv").open() as file:
        cells = list(csv.DictReader(file))
    simulated = {
        (cell["profile"], cell["schedule"]): f"{float(cell['simulated']):.4f}" for cell in cells
    }
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    table = [[cell.strip() for cell in row.split("|")] for row in rows]
    head = next(row for row in table if row[0] == "profile")
    shown = {
        (row[0], name): rate
        for row in table
        if (ROOT / "experiments" / "profiles" / f"{row[0]}.yaml").exists()
        for name, rate in zip(head[1:], row[1:], strict=True)
        if rate
    }
    assert len(shown) > 20
    assert {key: simulated[key] for key in shown} == shown
    equal = sum(cell["simulated"] == cell["published"] for cell in cells)
    interleaved = sum(cell["schedule"] == "1F1B-I" for cell in cells)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(cells)} cells" in text
    assert f"{equal} come out equal" in text
    assert f"the {interleaved} of 1F1B-I differ" in text
