"""Named tuples of arrays that compiled code passes as one pointer.

Numba takes a tuple apart: a call passes each of its arrays as seven values, so that functions with some tens of arrays compile
for long. A `Packed` value is written to memory once, where Python calls compiled code, and its fields are read from there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, imputils, types
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import (
    NativeValue,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)


class Packed(types.Type):
    """The type of a pointer to the fields of a named tuple."""

    def __init__(self, of: type, fields: tuple[Any, ...]) -> None:
        self.names: tuple[str, ...] = of._fields  # type: ignore[attr-defined]
        self.fields = fields
        names = ", ".join(map(str, fields))
        super().__init__(name=f"Packed({of.__module__}.{of.__qualname__}: {names})")

    def index(self, name: str) -> int:
        return self.names.index(name)


register_model(Packed)(models.OpaqueModel)


def pack(cls: type) -> None:
    """Let compiled code take values of a named tuple as pointers. It reads their fields, and makes none itself."""

    @typeof_impl.register(cls)
    def _(value: Any, context: Any) -> Packed:
        return Packed(cls, tuple(typeof_impl(field, context) for field in value))


@infer_getattr
class _Field(AttributeTemplate):
    key = Packed

    def generic_resolve(self, packed: Packed, name: str) -> Any:
        return packed.fields[packed.index(name)] if name in packed.names else None


def _struct(context: Any, packed: Packed) -> Any:
    return ir.LiteralStructType([context.get_value_type(field) for field in packed.fields])


@unbox(Packed)
def _unbox(packed: Packed, value: Any, c: Any) -> Any:
    builder = c.builder
    memory = cgutils.alloca_once(builder, _struct(c.context, packed))
    failed = cgutils.alloca_once_value(builder, cgutils.false_bit)
    done = builder.append_basic_block("packed")
    read: list[Any] = []

    def give_back() -> None:
        for at, field in enumerate(read if c.context.enable_nrt else ()):
            kept = builder.load(cgutils.gep_inbounds(builder, memory, 0, at))
            c.context.nrt.decref(builder, field, kept)

    for at, field in enumerate(packed.fields):
        native = c.unbox(field, c.pyapi.tuple_getitem(value, at))
        with builder.if_then(native.is_error, likely=False):
            builder.store(cgutils.true_bit, failed)
            give_back()
            builder.branch(done)
        builder.store(native.value, cgutils.gep_inbounds(builder, memory, 0, at))
        read.append(field)
    builder.branch(done)
    builder.position_at_end(done)
    pointer = builder.bitcast(memory, cgutils.voidptr_t)
    return NativeValue(pointer, cleanup=give_back, is_error=builder.load(failed))


@lower_getattr_generic(Packed)
def _getattr(context: Any, builder: Any, packed: Packed, value: Any, name: str) -> Any:
    at = packed.index(name)
    field = packed.fields[at]
    whole = builder.bitcast(value, _struct(context, packed).as_pointer())
    read = _read(builder, cgutils.gep_inbounds(builder, whole, 0, at))
    return imputils.impl_ret_borrowed(context, builder, field, read)


def _read(builder: Any, pointer: Any) -> Any:
    """Read a value part by part, so that what is not used of it is not read. Nothing writes there while code runs."""
    kind = pointer.type.pointee
    if not isinstance(kind, ir.Aggregate):
        read = builder.load(pointer)
        read.set_metadata("invariant.load", builder.module.add_metadata([]))
        return read
    whole = ir.Constant(kind, ir.Undefined)
    for at in range(len(kind)):
        part = _read(builder, cgutils.gep_inbounds(builder, pointer, 0, at))
        whole = builder.insert_value(whole, part, at)
    return whole
