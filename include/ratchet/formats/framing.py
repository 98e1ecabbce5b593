"""The framing of registries: by which schema a value was written, as bytes in front of it or a header say."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.port import NoRow
from ratchet.formats.registry import SchemaId
from ratchet.values.unfit import excerpt

_GREATEST = 2**31 - 1
"""A registry has no greater id, and says of one that it has no such page."""
_BEHIND_ID, _BEHIND_GUID = 5, 17
_WANTED = "a byte 0 and the 4 bytes of a schema's id in front of it"


@dataclass(frozen=True)
class Framed:
    """The id of the schema, or its GUID, and the number of bytes in front of the datum.

    `behind` is what stands behind the id in Confluent's header, `named` the name of a message type that Apicurio's
    headers have; both are None where the id is in front.
    """

    schema: SchemaId
    start: int
    behind: bytes | None = None
    named: str | None = None


class Framing:
    """Finds the schemas of values, or of keys.

    A header goes before what stands in front, as Confluent's deserializers have it. `encoding` is the only one of
    Apicurio's encodings that the caller reads. Of a format with `messages` there is more behind an id.
    """

    def __init__(self, part: Literal["value", "key"], encoding: str, messages: bool = False):
        self._confluent = f"__{part}_schema_id"
        self._content, self._global, self._encoding = (
            f"apicurio.{part}.{what}" for what in ("contentId", "globalId", "encoding")
        )
        self._type = "apicurio.protobuf.type" + (".key" if part == "key" else "")
        self._names = {self._confluent, self._content, self._global, self._encoding, self._type}
        self._read, self._messages = encoding, messages

    def framed(self, sent: pa.BinaryArray, headers: pa.ListArray | None) -> list[Framed | NoRow]:
        """What each value says of its schema."""
        values = sent.to_pylist()
        if headers is None or not pc.sum(pc.list_value_length(headers)).as_py():
            return [_possible(_in_front(value)) for value in values]
        found: list[Framed | NoRow] = []
        for value, of in zip(values, headers.to_pylist(), strict=True):
            mine = {h["key"]: h["value"] or b"" for h in of or () if h["key"] in self._names}
            try:
                found.append(_possible(self._in_headers(mine) or _in_front(value)))
            except NoRow as reason:
                found.append(reason)
        return found

    def _in_headers(self, headers: Mapping[str, bytes]) -> Framed | None:
        """What the headers say; None if they say nothing. Of several of one name the last one counts."""
        encoding = headers.get(self._encoding)
        if encoding is not None and encoding != self._read.encode():
            raise NoRow(
                f"the value: its header {self._encoding} says {excerpt(encoding)}; only {self._read} can be read"
            )
        said = headers.get(self._confluent)
        if said is not None:
            return self._by_confluent(said)
        said = headers.get(self._content)
        if said is not None:
            if len(said) != 8:
                raise NoRow(f"the value: its header {self._content} has {len(said)} bytes, wanted an id of 8")
            named = headers.get(self._type, b"").decode(errors="replace")
            return Framed(int.from_bytes(said, "big", signed=True), 0, named=named)
        if self._global in headers:
            raise NoRow(
                f"the value: its header {self._global} has an id of Apicurio's own, which Confluent's interface does "
                "not know; have producers send content ids, or ids in front of the value"
            )
        return None

    def _by_confluent(self, said: bytes) -> Framed:
        if said[:1] == b"\x00" and self._is_long(said, _BEHIND_ID):
            return Framed(int.from_bytes(said[1:_BEHIND_ID], "big"), 0, behind=said[_BEHIND_ID:])
        if said[:1] == b"\x01" and self._is_long(said, _BEHIND_GUID):
            return Framed(UUID(bytes=said[1:_BEHIND_GUID]), 0, behind=said[_BEHIND_GUID:])
        raise NoRow(f"the value: its header {self._confluent} has {len(said)} bytes that are no id of a schema")

    def _is_long(self, said: bytes, length: int) -> bool:
        return len(said) >= length if self._messages else len(said) == length


def _possible(found: Framed | NoRow) -> Framed | NoRow:
    """The same; NoRow where no schema can have its id."""
    if isinstance(found, Framed) and isinstance(found.schema, int) and not 0 <= found.schema <= _GREATEST:
        return NoRow(f"the value: found schema {found.schema}, and ids are up to {_GREATEST:,}")
    return found


def _in_front(value: bytes) -> Framed | NoRow:
    if len(value) >= _BEHIND_ID and value[0] == 0:
        return Framed(int.from_bytes(value[1:_BEHIND_ID], "big"), _BEHIND_ID)
    first = f"a first byte {value[0]:#04x}" if value and value[0] else f"{len(value)} bytes"
    return NoRow(f"the value: found {first}, wanted {_WANTED}")
