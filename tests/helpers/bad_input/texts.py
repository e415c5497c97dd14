"""Files that are no YAML or JSON, or more than one should read."""

from __future__ import annotations

from .cases import SIMULATE, Row


def _bomb(leaf: str, wrap: str, levels: int = 12) -> str:
    """Aliases that stand for ten times as much on every level."""
    lines = [f"l0: &l0 {leaf}"]
    for level in range(1, levels):
        inner = ",".join([f"*l{level - 1}"] * 10)
        lines.append(f"l{level}: &l{level} {wrap.format(inner)}")
    return "\n".join(lines) + "\n"


_HEAD = "name: x\ndevices: 4\nstages: {t_f_ms: 1, t_b_ms: 1, t_w_ms: 1, act_mib: 1}\n"
_TEXTS: list[tuple[str, str, str]] = [
    ("bad.yaml", "", "bad.yaml: is empty, expected a mapping of keys"),
    ("bad.yaml", "- 1\n- 2\n", "bad.yaml: holds list, expected a mapping of keys"),
    ("bad.yaml", "31.2\n", "bad.yaml: holds"),
    ("bad.yaml", "devices: [1\n", "bad.yaml: not valid YAML"),
    ("bad.yaml", "devices: 2\ndevices: 3\n", "key 'devices' is given twice at line 2, column 1"),
    ("bad.yaml", "a: {<<: {x: 1}, <<: {y: 1}}\n", "key '<<' is given twice; write <<: [*ONE, *OTHER]"),
    ("bad.yaml", "a: {<<: 5}\n", "not valid YAML: expected a mapping"),
    ("bad.yaml", "a: {<<: [5]}\n", "not valid YAML: expected a mapping for merging"),
    ("bad.yaml", "? [1, 2]\n: 3\n", "not valid YAML"),
    ("bad.yaml", "1.5: 3\n", "key 1.5 is not a word"),
    ("bad.yaml", "devices: 1:30.5\n", "1:30.5 is no decimal number"),
    ("bad.yaml", "devices: 0x" + "F" * 5000 + "\n", "a number of more than 400 digits"),
    ("bad.yaml", "devices: " + "9" * 5000 + "\n", "bad.yaml: cannot be parsed: a number of too many digits"),
    ("bad.yaml", "devices: " + "9" * 4000 + "\n", "a number of more than 400 digits"),
    ("bad.json", '{"devices": ' + "9" * 4000 + "}", "devices: must be a whole number from 1 to 4096"),
    ("bad.json", '{"devices": 4, "stages": {"t_f_ms": ' + "9" * 4000 + ', "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1}}', "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", _HEAD.replace("t_f_ms: 1,", "t_f_ms: 1e999999999,"), "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", _HEAD.replace("t_f_ms: 1,", "t_f_ms: 1e-999999999,"), "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", "a: &a [*a]\n", "not valid YAML: a value that contains itself"),
    ("bad.yaml", "a: &a {b: {c: *a}}\n", "not valid YAML: a value that contains itself"),
    ("bad.yaml", "a: *nothing\n", "undefined alias"),
    ("bad.yaml", "a: &a 1\nb: &a 2\n", "not valid YAML"),
    ("bad.yaml", "--- {a: 1}\n--- {b: 1}\n", "not valid YAML: but found another document"),
    ("bad.yaml", "a: !!python/object/apply:os.system [ls]\n", "os.system is no plain data"),
    ("bad.yaml", "a: !!binary aGVsbG8=\n", "binary is no plain data"),
    ("bad.yaml", "a: !!set {x}\n", "set is no plain data"),
    ("bad.yaml", "a: !mine 3\n", "!mine is no plain data"),
    ("bad.yaml", "a:\tb\n\tc: d\n", "not valid YAML"),
    ("bad.yaml", "a: \x07\n", "bad.yaml: not valid YAML: control characters are not allowed"),
    ("bad.yaml", "name: " + "[" * 100_000 + "\n", "bad.yaml: cannot be parsed: it is nested too deeply"),
    ("bad.yaml", "- " * 50_000 + "\n", "it is nested too deeply"),
    ("bad.yaml", "{a: " * 50_000 + "\n", "it is nested too deeply"),
    ("bad.yaml", _bomb("[x, x, x]", "[{}]"), "more than 500,000 values, its aliases written out"),
    ("bad.yaml", _HEAD + "meta:\n  " + _bomb("[x, x, x]", "[{}]").replace("\n", "\n  ").rstrip() + "\n", "more than 500,000 values"),
    ("bad.yaml", _bomb("{k: v}", "{{<<: [{}]}}"), "more than 500,000 values, its aliases written out"),
    ("bad.yaml", _bomb("x" * 1000, "[{}]", 6), "more than 16 MiB of text, its aliases written out"),
    ("bad.yaml", "name: &n [" + "x," * 1000 + "]\nmeta: [" + "*n," * 2000 + "]\n", "more than 500,000 values"),
    ("bad.json", "", "bad.json: not valid JSON"),
    ("bad.json", "{", "bad.json: not valid JSON: Expecting property name"),
    ("bad.json", '{"devices": 2', "(the file ends there: truncated?)"),
    ("bad.json", '{"devices": 2,, }', "not valid JSON"),
    ("bad.json", "[]", "bad.json: holds list, expected a mapping of keys"),
    ("bad.json", "null", "bad.json: is empty, expected a mapping"),
    ("bad.json", '{"devices": 2, "devices": 3}', "key 'devices' is given twice"),
    ("bad.json", '{"devices": ' + "[" * 100_000, "bad.json: cannot be parsed: it is nested too deeply"),
    ("bad.json", '{"devices": ' + '{"a": ' * 100_000, "it is nested too deeply"),
    ("bad.json", '{"devices": ' + "9" * 5000 + "}", "a number of too many digits"),
    ("bad.json", '{"devices": 4, "stages": NaN}', "stages: expected a mapping or a list of 4, got NaN"),
    ("bad.json", "{'devices': 4}", "not valid JSON"),
    ("bad.yaml", "@hex:fffefa", "bad.yaml: cannot be read: not UTF-8 text"),
    ("bad.yaml", "@hex:00000000", "bad.yaml: not valid YAML: control characters"),
    ("bad.yaml", "@hex:504b0304140000000800", "bad.yaml: "),
    ("bad.yaml", "@link:/dev/zero", "bad.yaml: does not end: at most 16 MiB are read"),
    ("bad.json", "@link:/dev/zero", "bad.json: does not end: at most 64 MiB are read"),
    ("bad.yaml", "@link:/dev/urandom", "bad.yaml: does not end: at most 16 MiB are read"),
    ("bad.yaml", "@link:/dev/null", "bad.yaml: is empty, expected a mapping of keys"),
    ("bad.yaml", "@link:nowhere", "bad.yaml: no such file"),
    ("bad.yaml", "@link:bad.yaml", "bad.yaml: cannot be read: Too many levels of symbolic links"),
    ("bad.yaml", "@sparse:50000000", "bad.yaml: is too large: 47.68 MiB, and at most 16 MiB are read"),
    ("bad.json", "@sparse:5000000000000", "bad.json: is too large: 4.547 TiB, and at most 512 MiB are read"),
    ("bad.yaml", "@folder:", "bad.yaml: cannot be read: Is a directory"),
]  # fmt: skip


def texts() -> list[Row]:
    return [
        Row(SIMULATE.replace("bad.yaml", name), says, {name: content})
        for name, content, says in _TEXTS
    ]
