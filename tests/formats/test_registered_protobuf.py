"""Protobuf in the framing of registries: ids, and which message type of a schema a value is."""

from __future__ import annotations

from base64 import b64encode
from uuid import uuid4

import pyarrow as pa
import pytest

from ratchet import Protobuf, Topic
from ratchet.errors import NotGranted, RegistryUnreachable, SettingsError
from ratchet.formats import registry as asked
from ratchet.formats.port import Use
from ratchet.formats.protobuf_schema import compiled
from ratchet.values.endpoint import Endpoint
from tests.apicurio import Apicurio

from .test_registry import CONNECTION, UNKNOWN, answering, read
from .wireformat import number, sized, text, zigzag

ORDER = """syntax = "proto3"; package o;
message Order { int32 a = 1; message Line { int32 a = 2; message Deep { int32 a = 3; } } }
message Refund { map<string, string> m = 1; message Line { int32 a = 4; } message More { int32 a = 5; } int32 a = 6; }
"""
ANY = Protobuf("a int", registry=CONNECTION)
ORDERS = Protobuf("a int", registry=CONNECTION, message="o.Order")


def answer(schema: str = ORDER, **more: object) -> tuple[int, object]:
    return 200, {"schema": schema, "schemaType": "PROTOBUF", **more}


def framed(schema: int, indexes: bytes, message: bytes) -> bytes:
    return b"\x00" + schema.to_bytes(4, "big") + indexes + message


def indexes(*said: int) -> bytes:
    """As Confluent's serializers write them, but for the short form."""
    return zigzag(len(said)) + b"".join(map(zigzag, said))


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(asked, "RETRY_SECONDS", 1)
    monkeypatch.setattr(asked, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(asked, "_known", {})


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (b"\x00", 1),
        (indexes(0), 1),
        (b"\x02\x02", 6),
        (indexes(1), 6),
        (b"\x04\x02\x00", 4),
        (indexes(1, 0), 4),
        (indexes(1, 1), 5),
        (indexes(0, 0), 2),
        (indexes(0, 0, 0), 3),
    ],
)
def test_indexes_say_which_message_type_a_value_is(said, field):
    with answering(answer()) as server:
        assert read(ANY, server.endpoint, framed(1, said, number(field, 7)))[0] == [[(7,)]]
    assert [path for path, _ in server.requests] == ["/schemas/ids/1"]


def test_messages_of_several_types_and_schemas_keep_their_order():
    later = 'syntax = "proto3"; package o; message Order { string b = 1; int64 a = 9; }'
    with answering(answer(), answer(later)) as server:
        values = [framed(1, b"\x00", number(1, n)) for n in range(3)]
        values += [framed(2, b"\x00", text(1, "x") + number(9, n)) for n in range(3, 5)]
        values += [framed(1, indexes(1), number(6, 5)), framed(1, b"\x00", b"\x08"), framed(1, b"\x00", number(1, 6))]
        rows, errors = read(Protobuf("a int, b string", registry=CONNECTION), server.endpoint, *values)
    expected = [[(n, "x" if n in (3, 4) else None)] for n in range(6)]
    assert rows == [*expected, None, [(6, None)]] and len(server.requests) == 2
    assert errors[6] == (
        "the value: found 1 bytes that are no o.Order by schema 1 (it ends too early, at byte 0), wanted one Protobuf "
        "message"
    )


def test_a_field_that_no_schema_has_is_said_with_the_names_beside_it():
    with answering(answer()) as server:
        decoder = Protobuf("a int, tenant string", registry=CONNECTION).decoder(
            Use("value", {CONNECTION: server.endpoint})
        )
        sent = [framed(1, b"\x00", number(1, 7)), framed(1, indexes(1), b"")]
        found = decoder.decode(pa.array(sent, pa.binary()))
        assert found.found == {"a"} and found.beside == {"tenant": {"a", "m"}}
        assert decoder.decode(pa.array([framed(1, b"\x00", b"")], pa.binary())).found == {"a"}


def test_where_the_spec_names_a_message_type_others_are_dead_letters():
    with answering(answer()) as server:
        rows, errors = read(ORDERS, server.endpoint, framed(1, b"\x00", number(1, 7)), framed(1, indexes(1), b""))
    assert rows == [[(7,)], None]
    assert errors[1] == "the value: found o.Refund by schema 1, wanted o.Order"


@pytest.mark.parametrize(
    ("value", "headers", "error"),
    [
        (framed(1, b"", b""), [], "found nothing behind the id of schema 1, wanted the indexes of a message type"),
        (framed(1, b"\x01", b""), [], "found 01 behind the id of schema 1, wanted the indexes"),
        (framed(1, b"\x04\x02", b""), [], "found 0402 behind the id of schema 1, wanted the indexes"),
        (framed(1, b"\xff" * 30, b""), [], "found ffffffffffffffffffffffffffffffffffffffff behind the id"),
        (framed(1, zigzag(101), b"\x00" * 200), [], "behind the id of schema 1, wanted the indexes"),
        (framed(1, indexes(2), b""), [], "schema 1 cannot be used: it has no message at [2]"),
        (framed(1, indexes(-1), b""), [], "schema 1 cannot be used: it has no message at [-1]"),
        (framed(1, indexes(0, 1), b""), [], "schema 1 cannot be used: it has no message at [0, 1]"),
        (number(1, 7), [], "found a first byte 0x08, wanted a byte 0"),
        (b"\x00\x00\x00\x00", [], "found 4 bytes, wanted a byte 0"),
        (b"", [("__value_schema_id", b"\x00\x00\x00\x00")], "header __value_schema_id has 4 bytes that are no id"),
        (b"", [("__value_schema_id", b"\x00\x00\x00\x00\x01")], "found nothing behind the id of schema 1"),
        (
            b"",
            [("__value_schema_id", b"\x01" + bytes(16))],
            "found nothing behind the id of schema 00000000-0000-0000-",
        ),
        (b"", [("apicurio.value.contentId", (1).to_bytes(8, "big"))], "by Apicurio's id, and no message type of it"),
        (
            b"",
            [("apicurio.value.contentId", (1).to_bytes(8, "big")), ("apicurio.protobuf.type", b"Other")],
            "schema 1 cannot be used: it has no message 'o.Other'; it has o.Order, o.Order.Line",
        ),
    ],
)
def test_a_value_that_names_no_message_type_is_an_error(value, headers, error):
    with answering(answer()) as server:
        said = [{"key": name, "value": sent} for name, sent in headers]
        _, (found,) = read(ANY, server.endpoint, value, headers=[said])
    assert found.startswith("the value: ") and error in found and found.isprintable()


@pytest.mark.parametrize("part", ["value", "key"])
def test_headers_name_the_schema_and_the_message_type(part):
    confluent, apicurio = f"__{part}_schema_id", f"apicurio.{part}.contentId"
    kind = "apicurio.protobuf.type" + (".key" if part == "key" else "")
    named = [{"key": apicurio, "value": (9).to_bytes(8, "big")}, {"key": kind, "value": b"Refund"}]
    headers = [
        [{"key": confluent, "value": b"\x00\x00\x00\x00\x09" + indexes(1, 0)}],
        [{"key": confluent, "value": b"\x00\x00\x00\x00\x09\x00"}],
        named,
        named,
        [],
    ]
    front = b"\x08\x0a\x06Refund"
    values = [number(4, 1), number(1, 2), number(6, 3), front + number(6, 4), framed(9, b"\x00", number(1, 5))]
    with answering(answer()) as server:
        rows, errors = read(ANY, server.endpoint, *values, headers=headers, part=part)
    assert errors == [None] * 5 and rows == [[(n,)] for n in range(1, 6)]


def test_a_header_may_name_the_schema_by_its_guid():
    # As Confluent's own serializer of Python has written them.
    guid, said = "ee385087-b162-4ac8-86f8-cf7301517828", "01ee385087b1624ac886f8cf7301517828"
    headers = [[{"key": "__value_schema_id", "value": bytes.fromhex(said + more)}] for more in ("00", "0202", "040200")]
    with answering(answer()) as server:
        values = [number(1, 2), number(6, 3), number(4, 1)]
        rows, errors = read(ANY, server.endpoint, *values, headers=headers)
    assert rows == [[(2,)], [(3,)], [(1,)]], errors
    assert [path for path, _ in server.requests] == [f"/schemas/guids/{guid}"]


def test_what_a_schema_imports_is_asked_for_and_found_by_its_name():
    order = 'syntax = "proto3"; import "x/customer.proto"; message Order { x.Customer by = 1; }'
    customer = 'syntax = "proto3"; package x; message Customer { string name = 1; }'
    references = [{"name": "x/customer.proto", "subject": "customer", "version": 3}]
    with answering(answer(order, references=references), answer(customer)) as server:
        declared = Protobuf("by string from by.name", registry=CONNECTION)
        assert read(declared, server.endpoint, framed(1, b"\x00", sized(1, text(1, "é"))))[0] == [[("é",)]]
    assert [path for path, _ in server.requests] == ["/schemas/ids/1", "/subjects/customer/versions/3"]


def test_a_schema_that_is_registered_compiled_is_read_too():
    with answering(answer(b64encode(compiled(ORDER, (), ()).file[-1].SerializeToString()).decode())) as server:
        assert read(ANY, server.endpoint, framed(1, indexes(1, 1), number(5, 7)))[0] == [[(7,)]]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ((200, {"schema": '"int"'}), "the value: schema 1 is of AVRO, wanted one of Protobuf"),
        ((200, {"schema": "{}", "schemaType": "JSON"}), "the value: schema 1 is of JSON, wanted one of Protobuf"),
        (answer("message {"), "the value: schema 1 cannot be used: protoc refuses it: (schema).proto:1:9"),
        (
            answer('syntax = "proto3"; import "x.proto";'),
            "the value: schema 1 cannot be used: protoc refuses it: x.proto",
        ),
        (answer('syntax = "proto3";'), "the value: schema 1 cannot be used: it has no message at [0]"),
        (UNKNOWN, "the value: schema 1 is not in the registry at http://127.0.0.1:"),
    ],
)
def test_a_schema_that_is_none_of_protobuf_is_an_error(said, error):
    with answering(said) as server:
        rows, errors = read(ANY, server.endpoint, *[framed(1, b"\x00", b"")] * 3)
    assert rows == [None] * 3 and errors[0].startswith(error) and len(set(errors)) == 1
    assert len(server.requests) == 1 and errors[0].isprintable()


def test_an_id_that_is_not_there_is_asked_for_again_in_the_next_batch():
    with answering(UNKNOWN, answer()) as server:
        decoder = ANY.decoder(Use("value", {CONNECTION: server.endpoint}))
        values = pa.array([framed(7, b"\x00", number(1, 1))], pa.binary())
        assert decoder.decode(values).errors.null_count == 0 and decoder.decode(values).errors.null_count == 1


@pytest.mark.parametrize(("status", "error"), [(401, SettingsError), (403, NotGranted), (503, RegistryUnreachable)])
def test_a_registry_that_refuses_or_is_away_ends_the_slice(status, error):
    with answering((status, "no")) as server, pytest.raises(error, match="connection 'orders_registry'"):
        read(ANY, Endpoint(server.endpoint.url, "me", "secret"), framed(1, b"\x00", b""))


def test_a_registry_is_a_connection_of_the_spec():
    assert Topic("t", value=ORDERS, key=Protobuf("k int", registry="keys")).connections == (CONNECTION, "keys")


@pytest.fixture(scope="module")
def apicurio(scratch):
    with Apicurio(scratch / f"registry-{uuid4().hex[:6]}") as running:
        yield running


@pytest.mark.all
def test_what_a_real_registry_knows_of_protobuf_is_read_by_its_ids(apicurio):
    customer = 'syntax = "proto3"; package x; message Customer { string name = 1; }'
    order = """syntax = "proto3"; package o; import "x/customer.proto"; import "google/protobuf/timestamp.proto";
    message Order { int32 a = 1; x.Customer by = 2; google.protobuf.Timestamp at = 3; message Line { int32 a = 7; } }"""
    apicurio.register("customer", customer, "PROTOBUF")
    references = ({"name": "x/customer.proto", "subject": "customer", "version": 1},)
    schema = apicurio.register("order", order, "PROTOBUF", references)
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    other = apicurio.register(f"json-{uuid4().hex[:6]}", draft, "JSON")
    values = [
        framed(schema, b"\x00", number(1, 7) + sized(2, text(1, "é"))),
        framed(schema, indexes(0, 0), number(7, 8)),
        framed(other, b"\x00", b""),
        framed(99_999, b"\x00", b""),
    ]
    declared = Protobuf("a int, by string from by.name", registry=CONNECTION)
    rows, errors = read(declared, apicurio.endpoint, *values)
    assert rows == [[(7, "é")], [(8, None)], None, None]
    assert errors[2:] == [
        f"the value: schema {other} is of JSON, wanted one of Protobuf",
        f"the value: schema 99999 is not in the registry at {apicurio.endpoint.url}",
    ]
