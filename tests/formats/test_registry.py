"""A registry of schemas: a real one, and what it may answer when something is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from uuid import uuid4

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from ratchet import Append, Avro, Json, Pipeline, Topic
from ratchet.errors import OUTAGES, NotGranted, RegistryUnreachable, SettingsError, is_outage
from ratchet.formats import registry as asked
from ratchet.formats.envelope import HEADERS
from ratchet.formats.port import Format, Use
from ratchet.testing import check, run
from ratchet.values.endpoint import Endpoint
from tests.apicurio import Apicurio

from .conformance import rows_of

CONNECTION = "orders_registry"
ONE = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def framed(number: int, schema: dict | None, value: object, front: bytes = b"\x00") -> bytes:
    """A value as Confluent's serializers write it."""
    return front + number.to_bytes(4, "big") + datum(schema, value)


def datum(schema: dict | None, value: object) -> bytes:
    if schema is None:
        return json.dumps(value).encode()
    into = BytesIO()
    schemaless_writer(into, parse_schema(schema), value)
    return into.getvalue()


def read(format_: Format, endpoint: Endpoint, *values: bytes, headers=None, part="value"):
    """([rows or None], [error or None]) of these values."""
    decoder = format_.decoder(Use(part, {CONNECTION: endpoint}))
    given = None if headers is None else pa.array(headers, HEADERS)
    found = decoder.decode(pa.array(values, pa.binary()), given)
    return rows_of(found, len(values)), found.errors.to_pylist()


class Answers(ThreadingHTTPServer):
    """Gives each request the next of these answers, and the last one for ever; None is silence."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, object] | None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.requests, self.over = list(answers), [], threading.Event()
        self.sent = []

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.server_address[1]}")


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_POST(self) -> None:
        self.server.sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if answer is None:
            self.server.over.wait(30)
            return
        body = answer[1].encode() if isinstance(answer[1], str) else json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(*answers: tuple[int, object] | None) -> Iterator[Answers]:
    with Answers(*answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


SCHEMA = (200, {"schema": json.dumps(ONE)})
UNKNOWN = (404, {"error_code": 40403, "message": "Schema not found"})
AVRO = Avro("a int", registry=CONNECTION)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """What is waited for when nobody answers, shorter than for real servers; and nothing known from other tests."""
    monkeypatch.setattr(asked, "RETRY_SECONDS", 1)
    monkeypatch.setattr(asked, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(asked, "_known", {})


@pytest.mark.parametrize("answer", [(500, "oops"), (503, ""), (429, {"message": "slow down"}), None])
def test_a_registry_that_cannot_answer_is_an_outage(answer):
    with answering(answer) as server, pytest.raises(RegistryUnreachable) as raised:
        read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))
    assert str(raised.value).startswith("connection 'orders_registry': the registry of schemas at http://127.0.0.1:")
    assert ("silent for 0.5 s" if answer is None else f"it answers {answer[0]}") in str(raised.value)
    assert is_outage(raised.value) and RegistryUnreachable in OUTAGES and len(server.requests) > 1


def test_a_registry_that_is_not_there_is_an_outage():
    with answering(SCHEMA) as server:
        nobody = server.endpoint
    with pytest.raises(RegistryUnreachable, match="does not answer: .*refused.*; check that it runs"):
        read(AVRO, nobody, framed(1, ONE, {"a": 1}))


def test_what_passes_by_itself_is_waited_for():
    with answering((503, ""), (500, ""), SCHEMA) as server:
        assert read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))[0] == [[(1,)]]
    assert [path for path, _ in server.requests] == ["/schemas/ids/1"] * 3


@pytest.mark.parametrize(("status", "error"), [(401, SettingsError), (403, NotGranted)])
def test_a_registry_that_refuses_the_login_names_the_connection(status, error):
    with answering((status, "no")) as server, pytest.raises(error) as raised:
        read(AVRO, Endpoint(server.endpoint.url, "me", "secret"), framed(1, ONE, {"a": 1}))
    assert type(raised.value) is error and len(server.requests) == 1
    assert f"connection 'orders_registry': the registry at {server.endpoint.url} answers {status}" in str(raised.value)
    assert "correct its login and password, or the token in its extra" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_login_and_token_are_sent():
    with answering(SCHEMA) as server:
        url = server.endpoint.url
        for number, endpoint in enumerate(
            [Endpoint(url), Endpoint(url, "mé", "pass:word"), Endpoint(url, extra={"token": "abc"})]
        ):
            read(AVRO, endpoint, framed(number, ONE, {"a": 1}))
    assert [said for _, said in server.requests] == [None, "Basic bcOpOnBhc3M6d29yZA==", "Bearer abc"]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("registry:8081"), "cannot be asked: .*correct the connection's host"),
        (Endpoint("https://127.0.0.1:1", extra={"ca": "/nowhere.pem"}), "cannot be asked: .*nowhere.pem"),
        (Endpoint("http://127.0.0.1:1", extra={"token": 5}), "'token' in its extra is no text"),
    ],
)
def test_a_connection_that_cannot_be_used_is_named(endpoint, said):
    with pytest.raises(SettingsError, match=f"connection 'orders_registry': .*{said}"):
        read(AVRO, endpoint, framed(1, ONE, {"a": 1}))


@pytest.mark.parametrize("answer", [(404, "<html>not here</html>"), (200, "<html>"), (200, {"id": 1}), (400, "?")])
def test_what_is_no_registry_is_a_wrong_url_and_no_dead_letter(answer):
    with answering(answer) as server, pytest.raises(SettingsError, match="is no registry with Confluent's interface"):
        read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))


def test_an_id_that_is_not_there_is_asked_for_once_a_batch_and_again_in_the_next():
    with answering(UNKNOWN, SCHEMA) as server:
        decoder = AVRO.decoder(Use("value", {CONNECTION: server.endpoint}))
        values = pa.array([framed(7, ONE, {"a": 1})] * 3, pa.binary())
        said = f"the value: schema 7 is not in the registry at {server.endpoint.url}"
        assert decoder.decode(values).errors.to_pylist() == [said] * 3 and len(server.requests) == 1
        assert rows_of(decoder.decode(values), 3) == [[(1,)]] * 3 and len(server.requests) == 2


def test_a_test_of_a_pipeline_says_where_the_registry_is():
    spec = Pipeline(name="p", source=Topic("t", value=AVRO), sinks=[Append("rows", columns="a int")])
    with answering(SCHEMA) as server:
        for look in (run, check):
            result = look(spec, [framed(1, ONE, {"a": 1})], endpoints={CONNECTION: server.endpoint})
            assert result["rows"] == [{"a": 1}]
    with pytest.raises(SettingsError, match=f"connection '{CONNECTION}' is not given.*endpoints="):
        run(spec, [framed(1, ONE, {"a": 1})])


def test_an_id_is_asked_for_once_in_a_process():
    with answering(SCHEMA) as server:
        for _ in range(2):
            assert read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))[0] == [[(1,)]]
    assert len(server.requests) == 1


def test_a_reference_that_is_not_there_is_named():
    schema = (200, {"schema": json.dumps(ONE), "references": [{"name": "X", "subject": "a/b", "version": 3}]})
    with answering(schema, UNKNOWN) as server:
        _, (error,) = read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))
    assert [path for path, _ in server.requests] == ["/schemas/ids/1", "/subjects/a%2Fb/versions/3"]
    assert error.startswith("the value: schema 1 refers to version 3 of subject 'a/b', which is not in the registry")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"schema": "{"}, "the value: schema 1 cannot be used: it is no schema of Avro"),
        ({"schema": '{"type": "object"}', "schemaType": "JSON"}, "the value: schema 1 is of JSON, wanted one of Avro"),
    ],
)
def test_a_schema_that_is_none_of_avro_is_an_error(said, error):
    with answering((200, said)) as server:
        assert read(AVRO, server.endpoint, framed(1, ONE, {"a": 1}))[1][0].startswith(error)


@pytest.mark.parametrize(
    ("value", "headers", "error"),
    [
        (b"", [], "found 0 bytes, wanted a byte 0 and the 4 bytes of a schema's id in front of it"),
        (b"\x00\x00\x00\x01", [], "found 4 bytes, wanted a byte 0"),
        (b"\x00\xff\xff\xff\xff\x02", [], "found schema 4294967295, and ids are up to 2,147,483,647"),
        (b"\x02", [("apicurio.value.contentId", b"\xff" * 8)], "found schema -1, and ids are up to"),
        (b'{"a": 1}', [], "found a first byte 0x7b, wanted a byte 0"),
        (b"\x02", [("__value_schema_id", b"\x01" + bytes(15))], "header __value_schema_id has 16 bytes that are no id"),
        (b"\x02", [("__value_schema_id", b"\x00\x01")], "header __value_schema_id has 2 bytes that are no id"),
        (b"\x02", [("__value_schema_id", None)], "header __value_schema_id has 0 bytes that are no id"),
        (b"\x02", [("apicurio.value.contentId", b"\x01")], "apicurio.value.contentId has 1 bytes, wanted an id"),
        (
            b"\x02",
            [("apicurio.value.globalId", bytes(8))],
            "header apicurio.value.globalId has an id of Apicurio's own",
        ),
        (b"{}", [("apicurio.value.encoding", b"JSON")], "apicurio.value.encoding says JSON; only BINARY can be"),
        (b"\x02", [("__key_schema_id", b"\x00" + bytes(4))], "found a first byte 0x02, wanted a byte 0"),
    ],
)
def test_a_value_that_names_no_schema_is_an_error_that_says_what_was_looked_for(value, headers, error):
    with answering(SCHEMA) as server:
        said = [{"key": name, "value": sent} for name, sent in headers]
        _, (found,) = read(AVRO, server.endpoint, value, headers=[said])
    assert found.startswith("the value: ") and error in found and server.requests == []


@pytest.mark.parametrize(
    ("part", "header", "sent"),
    [
        ("value", "__value_schema_id", b"\x00\x00\x00\x00\x09"),
        ("key", "__key_schema_id", b"\x00\x00\x00\x00\x09"),
        ("value", "apicurio.value.contentId", (9).to_bytes(8, "big")),
        ("key", "apicurio.key.contentId", (9).to_bytes(8, "big")),
    ],
)
def test_a_header_names_the_schema_before_what_is_in_front_does(part, header, sent):
    with answering(SCHEMA) as server:
        headers = [[{"key": "other", "value": b"x"}, {"key": header, "value": sent}], None, []]
        values = [datum(ONE, {"a": 5}), framed(8, ONE, {"a": 6}), framed(8, ONE, {"a": 7})]
        assert read(AVRO, server.endpoint, *values, headers=headers, part=part)[0] == [[(5,)], [(6,)], [(7,)]]
    assert [path for path, _ in server.requests] == ["/schemas/ids/9", "/schemas/ids/8"]


# As Confluent's own serializers of Python have written them.
GUID = "8269043d-89a5-49a9-9b6e-f3ce23eed917"
BY_GUID = bytes.fromhex("018269043d89a549a99b6ef3ce23eed917")
NO_PAGE = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})


@pytest.mark.parametrize("part", ["value", "key"])
def test_a_header_may_name_the_schema_by_its_guid(part):
    headers = [[{"key": f"__{part}_schema_id", "value": BY_GUID}], []]
    with answering(SCHEMA) as server:
        for _ in range(2):
            values = datum(ONE, {"a": 5}), framed(8, ONE, {"a": 6})
            assert read(AVRO, server.endpoint, *values, headers=headers, part=part)[0] == [[(5,)], [(6,)]]
    assert [path for path, _ in server.requests] == [f"/schemas/guids/{GUID}", "/schemas/ids/8"]


def test_a_guid_that_no_schema_has_is_a_dead_letter_and_looked_for_again():
    headers = [[{"key": "__value_schema_id", "value": BY_GUID}]]
    with answering(UNKNOWN, SCHEMA) as server:
        said = f"the value: schema {GUID} is not in the registry at {server.endpoint.url}"
        assert read(AVRO, server.endpoint, b"\x02", headers=headers)[1] == [said]
        assert read(AVRO, server.endpoint, b"\x02", headers=headers)[0] == [[(1,)]]


def test_a_registry_that_knows_no_guids_is_told_from_what_is_no_registry():
    headers = [[{"key": "__value_schema_id", "value": BY_GUID}]]
    with answering(NO_PAGE, (200, ["AVRO", "JSON"])) as server:
        (error,) = read(AVRO, server.endpoint, b"\x02", headers=headers)[1]
    assert error.startswith(f"the value: found schema {GUID}, and the registry at {server.endpoint.url} knows no GUIDs")
    assert [path for path, _ in server.requests] == [f"/schemas/guids/{GUID}", "/schemas/types"]
    for other in (NO_PAGE, (404, "<html>"), (200, "<html>")):
        with answering(NO_PAGE, other) as server, pytest.raises(SettingsError, match="is no registry with Confluent"):
            read(AVRO, server.endpoint, b"\x02", headers=headers)
    with answering(NO_PAGE, (503, "")) as server, pytest.raises(RegistryUnreachable):
        read(AVRO, server.endpoint, b"\x02", headers=headers)


def test_json_is_read_behind_its_framing_and_its_schema_must_be_there():
    with answering((200, {"schema": "{}", "schemaType": "JSON"}), SCHEMA, UNKNOWN) as server:
        values = [framed(1, None, {"a": 1}), framed(2, None, {"a": 1}), framed(3, None, {"a": 1}), b'{"a": 1}']
        values += [framed(1, None, {"a": "x"}), framed(1, None, {"a": 2})]
        rows, errors = read(Json("a int", registry=CONNECTION), server.endpoint, *values)
        assert rows == [[(1,)], None, None, None, None, [(2,)]] and len(server.requests) == 3
        assert errors[1:5] == [
            "the value: schema 2 is of AVRO, wanted one of JSON",
            f"the value: schema 3 is not in the registry at {server.endpoint.url}",
            "the value: found a first byte 0x7b, wanted a byte 0 and the 4 bytes of a schema's id in front of it",
            'column a: found "x", wanted int',
        ]
        several, _ = read(
            Json("a int", rows="array", registry=CONNECTION),
            server.endpoint,
            *(b"", framed(1, None, [{"a": 1}, {"a": 2}])),
        )
        assert several == [None, [(1,), (2,)]]


@pytest.fixture(scope="module")
def apicurio(scratch):
    with Apicurio(scratch / f"registry-{uuid4().hex[:6]}") as running:
        yield running


@pytest.mark.all
def test_what_a_real_registry_knows_is_read_by_its_ids(apicurio):
    customer = {"type": "record", "name": "com.x.Customer", "fields": [{"name": "id", "type": "long"}]}
    order = {
        "type": "record",
        "name": "com.x.Order",
        "fields": [{"name": "a", "type": "int"}, {"name": "by", "type": ["null", "com.x.Customer"]}],
    }
    apicurio.register("customer", customer)
    one = apicurio.register("one", ONE)
    two = apicurio.register(
        "order", order, references=({"name": "com.x.Customer", "subject": "customer", "version": 1},)
    )
    whole = {**order, "fields": [order["fields"][0], {"name": "by", "type": ["null", customer]}]}
    values = [framed(one, ONE, {"a": 1}), framed(two, whole, {"a": 2, "by": {"id": 3}}), framed(99_999, ONE, {"a": 1})]
    rows, errors = read(Avro("a int, by bigint from by.id", registry=CONNECTION), apicurio.endpoint, *values)
    assert rows == [[(1, None)], [(2, 3)], None]
    assert errors[2] == f"the value: schema 99999 is not in the registry at {apicurio.endpoint.url}"


@pytest.mark.all
def test_a_real_registry_of_apicurio_knows_no_guids(apicurio):
    headers = [[{"key": "__value_schema_id", "value": BY_GUID}]]
    (error,) = read(AVRO, apicurio.endpoint, b"\x02", headers=headers)[1]
    assert error.startswith(
        f"the value: found schema {GUID}, and the registry at {apicurio.endpoint.url} knows no GUIDs"
    )


@pytest.mark.all
def test_a_schema_that_changes_goes_on_by_the_readers(apicurio):
    subject = f"changes-{uuid4().hex[:6]}"
    fields = [("long", "a"), ("string", "b")]
    reader = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "none"}],
        }
    )
    older = apicurio.register(subject, ONE)
    newer_schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for t, n in fields]}
    newer = apicurio.register(subject, newer_schema)
    broken_schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    broken = apicurio.register(f"{subject}-broken", broken_schema)
    values = [
        framed(older, ONE, {"a": 1}),
        framed(newer, newer_schema, {"a": 2, "b": "x"}),
        framed(broken, broken_schema, {"a": "x"}),
    ]
    rows, errors = read(Avro("a bigint, b string", schema=reader, registry=CONNECTION), apicurio.endpoint, *values)
    assert rows == [[(1, "none")], [(2, "x")], None]
    assert errors[2].startswith(f"the value: R by schema {broken} does not resolve to the reader's schema R: ")


@pytest.mark.all
def test_json_schema_of_a_real_registry(apicurio):
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    number = apicurio.register(f"json-{uuid4().hex[:6]}", schema, "JSON")
    other = apicurio.register("one", ONE)
    values = [framed(number, None, {"a": 1}), framed(other, None, {"a": 1})]
    rows, errors = read(Json("a int", registry=CONNECTION), apicurio.endpoint, *values)
    assert rows == [[(1,)], None] and errors[1] == f"the value: schema {other} is of AVRO, wanted one of JSON"
