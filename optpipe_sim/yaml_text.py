"""YAML as files of this program use it: exact decimals, keys that occur once, sizes that stay sensible.

Some texts are refused while they are read, before any value is made: aliases that
expand beyond a limit, a value that contains itself, tags that are not plain data.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

MOST_VALUES = 500_000  # values and keys, each alias counted as what it stands for
MOST_CHARACTERS = 2**24
_LONGEST_INT = 10**400
_TAG = "tag:yaml.org,2002:{}"
_MERGE = _TAG.format("merge")
_KEPT = ("null", "bool", "str", "seq", "map")


class Number(Decimal):
    """A decimal that is printed as the user wrote it: ``31.2`` and not ``Decimal('31.2')``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Composer(Composer):
    """Nodes with what they expand to counted as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[attr-defined]  # of the parser
        node = super().compose_node(parent, index)
        size = self._sizes.get(id(node))
        if size is None:
            if isinstance(event, yaml.AliasEvent):  # of what is still being read
                raise _refusal("a value that contains itself", event)
            size = self._sizes[id(node)] = self._size(node)
        if size[0] > MOST_VALUES or size[1] > MOST_CHARACTERS:
            what = f"{MOST_VALUES:,} values" if size[0] > MOST_VALUES else "16 MiB of text"
            raise _refusal(f"more than {what}, its aliases written out", event)
        return node

    def _size(self, node: Any) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, len(node.value)
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(one,) for one in node.value]
        sizes = [self._sizes[id(part)] for pair in pairs for part in pair]
        return 1 + sum(size for size, _ in sizes), sum(length for _, length in sizes)


def _refusal(problem: str, event: Any) -> ComposerError:
    return ComposerError(None, None, problem, event.start_mark)


class _Constructor(SafeConstructor):
    """Plain data only; mappings whose keys occur once, but for what a merge key brings along."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            merges = key_node.tag == _MERGE
            key = "<<" if merges else self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int):
                raise ConstructorError(
                    None, None, f"key {key!r} is not a word", key_node.start_mark
                )
            if key in seen:
                hint = "; write <<: [*ONE, *OTHER]" if merges else ""
                raise ConstructorError(
                    None, None, f"key {key!r} is given twice{hint}", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: Any) -> Number:
        text = node.value.replace("_", "").lower()
        special = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
        try:
            return Number(special.get(text, text))
        except InvalidOperation:  # 1:30.5, which YAML 1.1 takes for minutes and seconds
            problem = f"{node.value} is no decimal number"
            raise ConstructorError(None, None, problem, node.start_mark) from None

    def construct_int(self, node: Any) -> int:
        number: int = self.construct_yaml_int(node)
        if abs(number) >= _LONGEST_INT:
            raise ConstructorError(None, None, "a number of more than 400 digits", node.start_mark)
        return number

    def refuse(self, node: Any) -> None:
        raise ConstructorError(None, None, f"tag {node.tag} is no plain data", node.start_mark)


_Constructor.yaml_constructors = {
    **{tag: SafeConstructor.yaml_constructors[tag] for tag in map(_TAG.format, _KEPT)},
    _TAG.format("float"): _Constructor.construct_number,
    _TAG.format("int"): _Constructor.construct_int,
    None: _Constructor.refuse,  # every other
}


class _Resolver(Resolver):
    """Dates are texts; 1e3 is the number that people, and JSON, mean by it (YAML 1.1: 1.0e+3)."""


_Resolver.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in Resolver.yaml_implicit_resolvers.items()
}
_Resolver.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)

if hasattr(yaml, "CSafeLoader"):  # libyaml reads the text; nodes and values are made above
    from yaml._yaml import CParser

    class _Loader(_Composer, CParser, _Constructor, _Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _Composer.__init__(self)
            _Constructor.__init__(self)
            _Resolver.__init__(self)

else:
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class _Loader(Reader, Scanner, Parser, _Composer, _Constructor, _Resolver):  # type: ignore
        def __init__(self, text: str) -> None:
            Reader.__init__(self, text)
            Scanner.__init__(self)
            Parser.__init__(self)
            _Composer.__init__(self)
            _Constructor.__init__(self)
            _Resolver.__init__(self)


def parse_yaml(text: str) -> Any:
    """Return the data in a YAML text: mappings, lists, texts, numbers (decimals as `Number`), true, null.

    Raises:
        yaml.YAMLError: for what is no YAML, or is refused; it has the place.
        ValueError, RecursionError: for a number that is too long, and for too deep nesting.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
