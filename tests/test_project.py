"""The project's own promises: import direction, light imports, files that say the same thing."""

from __future__ import annotations

import ast
import csv
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

import optpipe_sim
from optpipe_sim.schedules import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "optpipe_sim"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Each row may import from itself and from the rows above it.
LAYERS = (
    {"codes", "errors", "lazy", "ops", "option_fields", "version"},
    {"units", "files", "yaml_text", "processes"},
    {"compiled", "packed", "execution"},
    {
        "stage_cost",
        "schedule",
        "op_table",
        "profile",
        "profile_io",
        "op_costs",
    },
    {"trace"},
    {"schedules", "sim", "bounds", "checker", "reasons"},
    {"atlas"},
    {"solvers"},
    {"names"},
    {"costs", "plot", "frameworks"},
    {"study"},
    {"report"},
    {"runtime"},
    {"cli", "__main__"},
    {""},  # the package itself, which looks names up everywhere
)
LAYER = {name: at for at, names in enumerate(LAYERS) for name in names}


def _dotted(path: Path) -> str:
    """A file of the package as ``sim.engine``; ``__init__.py`` as its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_dotted(path): path for path in PACKAGE.rglob("*.py")}
OTHERS = [  # code outside the package
    path
    for folder in ("tests", "experiments", "results", "benchmarks", "notebooks")
    for path in (ROOT / folder).rglob("*.py")
]


def _imports(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere, lazily, for types and by name as well."""
    package = ("optpipe_sim", *path.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            # `from room import name`: a file of the room, or else what its __init__ has
            found |= {
                name if name.removeprefix("optpipe_sim.") in FILES else module
                for name in (f"{module}.{alias.name}" for alias in node.names)
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    inside = {name for name in found if name.split(".")[0] == "optpipe_sim"}
    return {name.removeprefix("optpipe_sim").removeprefix(".") for name in inside} & set(FILES)


@cache
def _all_imports() -> dict[str, set[str]]:
    """What each file of the package imports; read once a test asks, not by every process that collects them."""
    return {name: _imports(path) for name, path in FILES.items()}


def _room(name: str) -> str:
    return name.split(".")[0]


def _reached(start: str) -> set[str]:
    """All that a file imports, and what that imports, and so on."""
    seen: set[str] = set()
    todo = {start}
    while todo:
        seen |= todo
        todo = set().union(*(_all_imports()[name] for name in todo)) - seen
    return seen


def test_imports_run_one_way_between_rooms() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in _all_imports().items()
        for other in others
        if LAYER[_room(other)] > LAYER[_room(name)]
    ]
    assert not wrong
    assert sum(map(len, _all_imports().values())) > 500  # the reader above reads
    assert {"ops", "solvers.problem"} <= _all_imports()["solvers.milp.sets"]
    assert "schedules" in _all_imports()["names"]  # an __init__


def test_no_circle_of_imports_between_files() -> None:
    left = {name: set(others) for name, others in _all_imports().items()}
    while free := {name for name, others in left.items() if not others & set(left)}:
        left = {name: others for name, others in left.items() if name not in free}
    circles = {name: sorted(others & set(left)) for name, others in left.items()}
    assert circles == {}, "each of these imports others of them"


def test_the_checker_does_not_know_the_simulator_or_the_solvers() -> None:
    seen = {
        room for name in FILES if _room(name) == "checker" for room in map(_room, _reached(name))
    }
    assert not seen & {"sim", "solvers", "schedules", "bounds"}
    assert {"schedule", "profile"} <= seen


def test_the_atlas_is_checked_without_the_simulator_and_the_solvers() -> None:
    seen = set(map(_room, _reached("atlas.verify")))
    assert not seen & {"sim", "solvers", "schedules", "bounds"}
    assert {"checker", "schedule", "profile"} <= seen


def test_torch_only_in_the_runtime_and_the_runtime_only_for_the_command_line() -> None:
    users = {
        _room(name) for name, others in _all_imports().items() if "runtime" in map(_room, others)
    }
    assert users == {"runtime", "cli"}
    assert {_room(name) for name, path in FILES.items() if _imports_torch(path)} == {"runtime"}


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


LONGEST_FUNCTION = 80  # a screen and a half


def _long_functions(path: Path) -> dict[str, int]:
    """The functions of a file with more lines of code (no docstring, comments or blank lines) than a
    screen and a half; not compiled loops whose phases are numbered, nor lists of flags."""
    text = path.read_text()
    lines, found = text.split("\n"), {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = lines[node.lineno - 1 : node.end_lineno]
        compiled = any(
            isinstance(each, ast.Name) and each.id in ("compiled", "entry", "part", "step")
            for each in node.decorator_list
        )
        if compiled and sum(bool(re.match(r" *# \d+\. ", line)) for line in body) >= 3:
            continue
        documented = len((ast.get_docstring(node, clean=False) or "").split("\n"))
        code = [line for line in body if line.strip() and not line.strip().startswith("#")]
        size = len(code) - (documented if ast.get_docstring(node) else 0)
        if size > LONGEST_FUNCTION and node.name != "add_options":
            found[f"{path.relative_to(ROOT)}: {node.name}"] = size
    return found


def test_functions_fit_a_screen_and_a_half() -> None:
    long = {name: size for path in FILES.values() for name, size in _long_functions(path).items()}
    assert long == {}


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import optpipe_sim;"
        "print(*(name for name in set(sys.modules) - before if '.' not in name or 'optpipe_sim' in name))"
    )
    loaded = set(_python("-c", code).split())
    ours = {name for name in loaded if name.partition(".")[0] == "optpipe_sim"}
    assert "optpipe_sim" in ours
    assert len(ours) < 10  # the others come with the first name that is used
    assert {name for name in loaded - ours if name not in sys.stdlib_module_names} == set()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['optpipe-sim', '--help']; from optpipe_sim.cli import main;"
        "assert main() == 0; print(sorted({'numpy', 'torch', 'matplotlib', 'numba', 'bokeh'} & set(sys.modules)))"
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


def test_the_conda_environment_has_the_requirements_of_pyproject() -> None:
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


PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_site_has_its_own_file_for_search_from_disk() -> None:
    """No page of the site fetches anything, and each page of docs is in its navigation."""
    text = (ROOT / "mkdocs.yml").read_text()
    site = yaml.safe_load(text)
    assert {"search", "offline"} <= {one for one in site["plugins"] if isinstance(one, str)}
    (shim,) = site["extra"]["polyfills"]
    assert "iframe-worker" in shim  # what the plugin looks for
    assert (ROOT / "docs" / shim).is_file()
    listed = set(re.findall(r"- (\S+\.md)$", text, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}
    assert "Use" in str(site["nav"])
    assert "bounds.md" not in str([part for part in site["nav"] if "Use" in part])


def test_the_documentation_names_every_schedule_and_command() -> None:
    from optpipe_sim.cli.parser import EXAMPLES

    schedules = (ROOT / "docs" / "schedules.md").read_text()
    commands = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in REGISTRY if f"`{name}" not in schedules] == []
    assert [name for name in EXAMPLES if f"`{name}" not in commands] == []


def test_the_reference_has_every_public_name() -> None:
    import optpipe_sim.runtime

    reference = (ROOT / "docs" / "reference.md").read_text()
    entries = {line.rpartition(".")[2] for line in reference.splitlines() if line.startswith(":::")}
    public = {*optpipe_sim.__all__, *optpipe_sim.runtime.__all__}
    assert {name for name in public if name not in entries} == set()
    assert len(public) > 30


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
    headings = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text())
    assert [
        f"{name}#{anchor}"
        for name, anchor in headings
        if anchor not in _anchors(page.parent / name if name else page)
    ] == []


def _anchors(page: Path) -> set[str]:
    """The anchors that Markdown makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_readme_code_prints_what_it_says(monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    code, output = re.search(
        r"```python\n(.*?)```\s+```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    exec(code, {})
    assert capsys.readouterr().out == output


def test_the_refusals_shown_are_the_real_ones(monkeypatch, capsys) -> None:
    from optpipe_sim.cli import main

    monkeypatch.chdir(ROOT)
    shown = re.findall(
        r"^\$ optpipe-sim (.*)\n((?:optpipe-sim.*\n)+)",
        (ROOT / "docs" / "commands.md").read_text(),
        re.MULTILINE,
    )
    assert len(shown) >= 2
    for line, refusal in shown:
        assert main(line.split()) == 2
        assert capsys.readouterr().err == refusal


def test_the_pages_show_the_results_that_are_there() -> None:
    with (ROOT / "results" / "zb_tables.csv").open() as file:
        cells = list(csv.DictReader(file))
    simulated = {
        (cell["profile"], cell["schedule"]): f"{float(cell['simulated']):.4f}" for cell in cells
    }
    page = (ROOT / "docs" / "how-true.md").read_text()
    rows = re.findall(r"^\| (.*) \|$", page, re.MULTILINE)
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


def test_the_package_completes_to_what_one_uses() -> None:
    assert set(dir(optpipe_sim)) == {*optpipe_sim.__all__, "__version__"}
    assert {"estimate", "advise", "compare", "explain", "frontier", "gantt"} <= set(
        dir(optpipe_sim)
    )
    for name in optpipe_sim.__all__:
        assert getattr(optpipe_sim, name).__doc__, name


def test_a_profile_and_a_trace_show_themselves_in_a_line() -> None:
    profile = optpipe_sim.load_profile(ROOT / "experiments/profiles/zb-1.5b-p8-m24.yaml")
    trace = optpipe_sim.simulate(optpipe_sim.build("zb-h1", profile, 24), profile)
    for shown in (profile, trace):
        assert len(repr(shown)) < 100
        assert "<table>" in shown._repr_html_()
    hostile = replace(profile, name="<script>")
    assert "<script>" not in hostile._repr_html_()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_no_output_of_a_command_is_kept_at_the_top() -> None:
    told = subprocess.run(
        ["git", "ls-files", ":(glob)*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(told.stdout.split()) == {
        ".gitignore",
        "CITATION.cff",
        "LICENSE",
        "Makefile",
        "README.md",
        "constraints.txt",
        "environment.yml",
        "mkdocs.yml",
        "pyproject.toml",
    }


def test_the_files_that_begin_first_are_there() -> None:
    """Those that `conftest.py` names for their long tests."""
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text())
    (named,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONG"
    )
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
