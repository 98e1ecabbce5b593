"""Schemas of Protobuf: in the spec, in files, compiled, and as they change."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from ratchet import Protobuf
from ratchet.errors import IncompleteRead, SpecError
from ratchet.formats import protobuf_schema
from ratchet.formats.avro_schema import Unreadable
from ratchet.formats.port import Use
from ratchet.formats.protobuf_schema import compiled, of_text, registered, schema_of

from .conformance import rows_of
from .wireformat import group, number, sized, text

ORDER = """
syntax = "proto3";
package orders.v1;
message Order {
  int64 id = 1; string name = 2; Customer by = 3; repeated Customer all = 4; map<string, Customer> m = 5;
}
message Customer { string name = 1; message Address { string town = 1; } Address at = 2; }
"""


def read(declared: Protobuf, *values: bytes):
    found = declared.decoder(Use()).decode(pa.array(values, pa.binary()))
    return rows_of(found, len(values)), found.errors.to_pylist()


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (lambda: Protobuf("id int"), "Protobuf.spec: give schema, by which values are written, or registry"),
        (lambda: Protobuf("id int", schema=ORDER), "Protobuf.spec: message: beside schema give the message type"),
        (
            lambda: Protobuf("id int", schema=ORDER, registry="r", message="orders.v1.Order"),
            "Protobuf.spec: give schema or registry, not both",
        ),
        (
            lambda: Protobuf("id int", schema=ORDER, message="Order"),
            "message: it has no message 'Order'; it has orders.v1.Order, orders.v1.Customer, orders.v1.Customer.Addr",
        ),
        (
            lambda: Protobuf("id int, tenant string", schema=ORDER, message="orders.v1.Order"),
            "columns: column 'tenant': orders.v1.Order has no field 'tenant'; it has id, name, by, all, m",
        ),
        (
            lambda: Protobuf("t string from by.town", schema=ORDER, message="orders.v1.Order"),
            "column 't': orders.v1.Customer has no field 'town'; it has name, at",
        ),
        (
            lambda: Protobuf("t string from id.x", schema=ORDER, message="orders.v1.Order"),
            "column 't': orders.v1.Order.id has no field 'x'",
        ),
        (
            lambda: Protobuf("t string from all.name", schema=ORDER, message="orders.v1.Order"),
            "column 't': orders.v1.Order.all is repeated, and has no field 'name'",
        ),
        (
            lambda: Protobuf("id int", schema="{", message="M"),
            r"Protobuf.schema: protoc refuses it: \(schema\).proto:1:1",
        ),
        (
            lambda: Protobuf("id int", schema='syntax = "proto3"; import "x.proto";', message="M"),
            "protoc refuses it: x.proto: File not found.; ",
        ),
        (
            lambda: Protobuf("id int", schema='syntax = "proto3"; import "../../etc/x.proto";', message="M"),
            "protoc refuses it: ../../etc/x.proto: Backslashes",
        ),
        (
            lambda: Protobuf("id int", schema='syntax = "proto3"; message M { N n = 1; }', message="M"),
            '"N" is not defined',
        ),
        (lambda: Protobuf("id int", schema="message M {} // \ud800", message="M"), "half of a surrogate pair|utf-8"),
        (lambda: Protobuf("id int", schema="abc", message="M"), "it is neither the text of a .proto file nor base64"),
        (lambda: Protobuf("id int", schema="AAAA", message="M"), "it is no set of compiled files"),
        (
            lambda: Protobuf("id int", schema="orders.proto", message="M"),
            "package pipelines has no file 'orders.proto'",
        ),
        (lambda: Protobuf("id int", schema="../../pyproject.proto", message="M"), "package pipelines has no file"),
        (lambda: Protobuf("id int", registry=5), "Protobuf.registry: Input should be a valid string"),
        (lambda: Protobuf("id int", registry="r", message=5), "Protobuf.message: Input should be a valid string"),
        (lambda: Protobuf("id serial", registry="r"), "Protobuf.columns: column 'id' has the unknown type 'serial'"),
    ],
)
def test_an_illegal_declaration_of_protobuf_is_refused_with_the_reason(declared, said):
    with pytest.raises(SpecError, match=said):
        declared()


def test_files_of_the_package_of_specs_are_part_of_the_spec(tmp_path, monkeypatch):
    package = tmp_path / "pipelines"
    (package / "shared").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pipelines", raising=False)
    (package / "shared" / "customer.proto").write_text('syntax = "proto3"; message Customer { string name = 1; }')
    said = []
    for kind in ("int32", "int64"):
        (package / "orders.proto").write_text(
            f'syntax = "proto3"; import "shared/customer.proto"; message Order {{ {kind} id = 1; Customer by = 2; }}'
        )
        compiled.cache_clear()
        said.append(Protobuf("id bigint, by string from by.name", schema="orders.proto", message="Order"))
    assert said[0] != said[1]
    assert read(said[1], number(1, 2**40) + sized(2, text(1, "x")))[0] == [[(2**40, "x")]]
    (package / "orders.desc").write_bytes(b64decode(said[1].schema))
    assert Protobuf("id bigint, by string from by.name", schema="orders.desc", message="Order") == said[1]
    (package / "bad.desc").write_bytes(b"\xff")
    with pytest.raises(SpecError, match="it is no set of compiled files"):
        Protobuf("id int", schema="bad.desc", message="Order")
    (package / "latin.proto").write_bytes(b"// \xff")
    with pytest.raises(SpecError, match="it is no UTF-8"):
        Protobuf("id int", schema="latin.proto", message="Order")


def test_the_same_schema_has_one_form_whatever_its_layout():
    other = "// A comment.\n" + ORDER.replace(" }", "\n}")
    one, two = (Protobuf("id int", schema=each, message="orders.v1.Order") for each in (ORDER, other))
    assert one == two and one == Protobuf("id int", schema=one.schema, message="orders.v1.Order")


def test_columns_take_fields_by_their_names_however_they_are_numbered():
    before = 'syntax = "proto3"; message M { int32 a = 1; string b = 2; }'
    after = 'syntax = "proto3"; message M { string b = 1; int64 c = 3; int32 a = 5; }'
    for schema, value in ((before, number(1, 7) + text(2, "x")), (after, text(1, "x") + number(3, 9) + number(5, 7))):
        assert read(Protobuf("a int, b string", schema=schema, message="M"), value)[0] == [[(7, "x")]]
    # What a later producer has added is unknown; what it has removed is not there.
    old = Protobuf("a int, b string", schema=before, message="M")
    assert read(old, number(1, 7) + number(3, 9) + sized(4, b"\xff"))[0] == [[(7, "")]]
    # What it has given another type under an old number is an error.
    assert read(old, text(1, "x"))[1] == [
        "the value: found 3 bytes that are no M (M.a in another wire type than its own, at byte 0), wanted one "
        "Protobuf message"
    ]


@pytest.mark.parametrize(
    ("indexes", "name"),
    [((0,), "p.A"), ((1,), "p.B"), ((1, 0), "p.B.C"), ((1, 1), "p.B.D"), ((1, 1, 0), "p.B.D.E")],
)
def test_indexes_count_message_types_without_entries_of_maps(indexes, name):
    schema = registered(
        """syntax = "proto3"; package p; enum X { Y = 0; } message A {}
        message B { map<string, string> first = 1; message C {} enum Z { W = 0; } message D { message E {} } }""",
        {},
    )
    assert schema.at(indexes).full_name == name
    for wrong in ((2,), (-1,), (1, 2), (0, 0), (1, 1, 0, 0)):
        with pytest.raises(Unreadable, match="it has no message at"):
            schema.at(wrong)


def test_schemas_of_a_registry_import_each_other_by_name():
    customer = 'syntax = "proto3"; package c; import "town.proto"; message Customer { Town town = 1; }'
    town = 'syntax = "proto3"; package c; message Town { string name = 1; }'
    order = 'syntax = "proto3"; import "deep/customer.proto"; message Order { c.Customer by = 1; }'
    others = {"town.proto": town, "deep/customer.proto": customer}
    assert registered(order, others).at((0,)).fields_by_name["by"].message_type.full_name == "c.Customer"
    with pytest.raises(Unreadable, match="deep/customer.proto: File not found"):
        registered(order, {})
    for name in (
        "../out.proto",
        "/tmp/out.proto",
        "a/../../out.proto",
        "grpc_tools/__init__.py",
        "a\nb.proto",
        "a" * 501 + ".proto",
    ):
        with pytest.raises(Unreadable, match="which is no name of a .proto file"):
            registered(order, {**others, name: "out"})
    with pytest.raises(Unreadable, match="which cannot be beside the others"):
        registered(order, {"a.proto": town, "a.proto/b.proto": town})


def test_schemas_that_a_registry_has_compiled_are_read_as_their_text_is():
    file = FileDescriptorSet.FromString(
        b64decode(
            of_text('syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/type/date.proto"; '
                    "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; google.type.Date on = 3; }")
        )
    ).file[-1]  # fmt: skip
    sent = b64encode(file.SerializeToString()).decode()
    assert registered(sent, {}).at((0,)).fields_by_name["at"].message_type.full_name == "google.protobuf.Timestamp"
    outer = FileDescriptorProto(name="o.proto", syntax="proto3", dependency=["in.proto"])
    outer.message_type.add(name="O").field.add(name="x", number=1, type=11, label=1, type_name=".Order")
    outer_sent = b64encode(outer.SerializeToString()).decode()
    assert registered(outer_sent, {"in.proto": sent}).at((0,)).fields_by_name["x"].message_type.full_name == "Order"
    for references, said in (
        ({}, "in.proto: File not found"),
        ({"in.proto": "syntax = 'proto3';"}, "it is compiled, and 'in.proto', which it imports, is text"),
    ):
        with pytest.raises(Unreadable, match=said):
            registered(outer_sent, references)
    with pytest.raises(Unreadable, match="neither the text of a .proto file nor a compiled one"):
        registered("AAAA", {})


def test_options_of_confluents_registry_are_known():
    said = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    message M { option (confluent.message_meta).doc = "a"; confluent.type.Decimal d = 1 [(confluent.field_meta) = {
      params: [{ key: "precision", value: "5" }] }]; }"""
    assert read(Protobuf("d decimal(5,2)", schema=said, message="M"), sized(1, sized(1, b"\x01") + number(3, 2)))[
        1
    ] == [None]


def test_protoc_writes_into_a_temporary_directory_that_is_gone_afterwards(tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.chdir(work)
    # A module of that name in the working directory is not run.
    (work / "grpc_tools").mkdir()
    (work / "grpc_tools" / "__init__.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    before = sorted(Path(work).rglob("*"))
    of_text('syntax = "proto3"; message Written {}')
    with pytest.raises(Unreadable):
        of_text('syntax = "proto3"; message Refused {')
    assert not list(home.iterdir()) and sorted(work.rglob("*")) == before and not (tmp_path / "run").exists()


def test_a_text_that_protoc_does_not_survive_harms_nobody(monkeypatch):
    with pytest.raises(Unreadable, match="protoc refuses it: "):
        of_text("message M {" * 200_000)
    monkeypatch.setattr(protobuf_schema, "SECONDS", 0)
    # Of a machine that is busy, a schema is not to blame.
    with pytest.raises(IncompleteRead, match="protoc has not read a schema within 0 s; the slice is tried again"):
        of_text('syntax = "proto3"; message Slow {}')


def test_a_protoc_that_somebody_ends_is_no_word_about_the_schema(monkeypatch, tmp_path):
    ended = tmp_path / "python"
    ended.write_text("#!/bin/sh\nkill -KILL $$\n")
    ended.chmod(0o700)
    monkeypatch.setattr(protobuf_schema.sys, "executable", str(ended))
    with pytest.raises(IncompleteRead, match="protoc was ended by signal 9; the slice is tried again"):
        of_text('syntax = "proto3"; message Ended {}')


def test_types_of_a_common_name_that_are_made_otherwise_are_messages_like_any():
    other = FileDescriptorProto(name="o.proto", package="google.protobuf", syntax="proto3")
    stamp = other.message_type.add(name="Timestamp")
    stamp.field.add(name="seconds", number=1, type=9, label=1)
    other.message_type.add(name="M").field.add(
        name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp"
    )
    said = b64encode(FileDescriptorSet(file=[other]).SerializeToString()).decode()
    schema_of.cache_clear()
    declared = Protobuf("at json, s string from at.seconds", schema=said, message="google.protobuf.M")
    assert read(declared, sized(1, text(1, "noon")))[0] == [[('{"seconds": "noon"}', "noon")]]


def test_a_field_may_be_called_as_a_method_of_the_library():
    schema = """syntax = "proto3";
    message M { int32 HasField = 1; optional int32 FromString = 2; repeated int32 ByteSize = 3; int32 __class__ = 4;
      N n = 5; enum E { MergeFromString = 0; } E e = 6; }
    message N { optional int32 HasField = 1; optional int32 x = 2; }"""
    columns = "a int from HasField, b int from FromString, c array<int> from ByteSize, d int from __class__, n json"
    value = number(1, 1) + number(2, 2) + number(3, 3) + number(4, 4) + sized(5, number(1, 5) + number(2, 6))
    declared = Protobuf(f"{columns}, x json from n", schema=schema, message="M")
    assert read(declared, value)[0] == [[(1, 2, [3], 4, '{"x": 6, "HasField": 5}', '{"x": 6, "HasField": 5}')]]


def test_editions_say_what_is_told_of_presence_and_how_messages_are_written():
    schema = """edition = "2023";
    message M { int32 a = 1 [features.field_presence = IMPLICIT]; int32 b = 2;
      M n = 3 [features.message_encoding = DELIMITED]; E e = 4; }
    enum E { option features.enum_type = CLOSED; Z = 0; }"""
    declared = Protobuf("a int, b int, x int from n.a, e string", schema=schema, message="M")
    rows, errors = read(declared, group(3, number(1, 3)), group(3, b""), b"", number(4, 9), sized(3, b""))
    assert rows == [[(0, None, 3, None)], [(0, None, 0, None)], [(0, None, None, None)], None, None]
    assert errors[3:] == [
        "column e: found the number 9, which E has no name for, wanted string",
        "the value: found 2 bytes that are no M (M.n in another wire type than its own, at byte 0), wanted one "
        "Protobuf message",
    ]


def test_json_of_google_that_is_made_otherwise_is_a_message_like_any():
    other = FileDescriptorProto(name="o.proto", package="google.protobuf", syntax="proto3")
    struct = other.message_type.add(name="Struct")
    struct.field.add(name="fields", number=1, type=11, label=3, type_name=".google.protobuf.Struct.FieldsEntry")
    entry = struct.nested_type.add(name="FieldsEntry")
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".google.protobuf.Value")
    other.message_type.add(name="Value").field.add(name="kind", number=1, type=9, label=1)
    other.message_type.add(name="Int64Value").field.add(name="value", number=1, type=3, label=3)
    message = other.message_type.add(name="M")
    for field, name in enumerate(("Struct", "Value", "Int64Value"), 1):
        message.field.add(name=name, number=field, type=11, label=1, type_name=f".google.protobuf.{name}")
    said = b64encode(FileDescriptorSet(file=[other]).SerializeToString()).decode()
    declared = Protobuf(
        "s json from Struct, v json from Value, i json from Int64Value", schema=said, message="google.protobuf.M"
    )
    value = sized(1, sized(1, text(1, "k"))) + sized(2, text(1, "x")) + sized(3, number(1, 5))
    assert read(declared, value)[0] == [[('{"fields": [{"key": "k"}]}', '{"kind": "x"}', '{"value": [5]}')]]
