"""CloudEvents in both modes, by the Kafka protocol binding and the JSON event format."""

import json
from base64 import b64encode
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet import Bytes, CloudEvents, Csv, Debezium, Json, Topic
from ratchet.errors import SpecError
from ratchet.formats.envelope import HEADERS, Envelope
from ratchet.formats.port import Decoded, Use

from .messages import Message
from .test_messages import batch_of

REQUIRED = {"specversion": "1.0", "id": "7", "source": "/s", "type": "t"}
ALL = "wanted the id, source, specversion and type of a CloudEvent"


def structured(attributes: dict, **data) -> Message:
    value = json.dumps({**REQUIRED, **attributes, **data}).encode()
    return Message(None, value, (("content-type", b"application/cloudevents+json; charset=UTF-8"),))


def binary(attributes: dict, value: bytes, content: str | None = None) -> Message:
    headers = {f"ce_{name}": str(said) for name, said in {**REQUIRED, **attributes}.items() if said is not None}
    headers |= {} if content is None else {"content-type": content}
    return Message(None, value, tuple((name, said.encode()) for name, said in headers.items()))


def decode(declared: CloudEvents, *sent: Message) -> Decoded:
    batch = batch_of(list(sent))
    return declared.decoder(Use()).decode(batch.column("_value"), batch.column("_headers"))


def error_of(declared: CloudEvents, message: Message) -> str:
    (error,) = decode(declared, message).errors.to_pylist()
    assert error is not None
    return error


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=6)
EVENT = st.tuples(
    st.fixed_dictionaries(
        {"id": TEXT, "source": TEXT, "type": TEXT},
        optional={
            "time": st.datetimes(timezones=st.just(UTC)),
            "subject": TEXT,
            "n": st.integers(-(2**31), 2**31 - 1),
        },
    ),
    st.sampled_from(["structured", "coded", "binary"]),
    st.none() | st.fixed_dictionaries({"a": st.integers(-5, 5), "s": TEXT}),
)


def sent_as(attributes: dict, mode: str, data: dict | None) -> Message:
    said = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in attributes.items()}
    if mode == "binary":
        return binary(said, json.dumps(data or {}).encode(), "application/json")
    if data is None:
        return structured(said)
    coded = b64encode(json.dumps(data).encode()).decode()
    return structured(said, **({"data": data} if mode == "structured" else {"data_base64": coded}))


@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENT, max_size=6))
def test_events_of_both_modes_beside_each_other_come_back(events):
    columns = "id string, source string, kind string from type, at timestamp from time, subject string, n int"
    decoded = decode(CloudEvents(columns, data=Json("a int, s string")), *(sent_as(*event) for event in events))
    assert decoded.errors.drop_null().to_pylist() == []
    names = ("id", "source", "type", "time", "subject", "n")
    assert [tuple(row.values()) for row in decoded.columns.to_pylist()] == [
        (*(attributes.get(name) for name in names), *(map((data or {}).get, ("a", "s"))))
        for attributes, _, data in events
    ]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        *((structured({name: None}), f"the value: found no attribute {name}, {ALL}") for name in REQUIRED),
        *(
            (binary({name: None}, b"{}", "text/json"), f"the value: found no header ce_{name}, {ALL}")
            for name in REQUIRED
        ),
        (binary({"id": ""}, b"{}"), f"the value: found no header ce_id, {ALL}"),
        (structured({"specversion": "0.3"}), "the value: found a CloudEvent of specversion 0.3, wanted 1.0"),
        (binary({"specversion": "0.3"}, b"{}"), "the value: found a CloudEvent of specversion 0.3, wanted 1.0"),
        (structured({"id": 7}), "the value: found 7 as the attribute id, wanted a text"),
        (Message(None, b"{}", (("content-type", b"application/json"),)), f"the value: found no header ce_id, {ALL}"),
        (Message(None, b"{}"), f"the value: found no attribute id, {ALL}"),
        (
            Message(None, b"{}", (("content-type", b"application/cloudevents+avro"),)),
            "the value: found an event as application/cloudevents+avro, wanted application/cloudevents+json",
        ),
        (
            Message(None, b"[]", (("content-type", b"application/cloudevents-batch+json"),)),
            "the value: found an event as application/cloudevents-batch+json, wanted application/cloudevents+json",
        ),
        (
            Message(None, b"{", (("content-type", b"application/cloudevents+json"),)),
            "the value: found {, wanted one JSON object",
        ),
        (structured({}, data={}, data_base64="e30="), "the value: found data and data_base64, wanted one of them"),
        (structured({}, data_base64="e30"), 'the value: found "e30" as data_base64, wanted base64'),
        (structured({}, data=[5]), "the value: data: found [5], wanted one JSON object"),
        (structured({}, data={"a": "x"}), 'column a: found "x", wanted int'),
        (
            structured({"datacontenttype": "text/csv"}, data={}),
            "the value: found {} as data of text/csv, wanted a text",
        ),
        (binary({}, b"[5]"), "the value: found [5], wanted one JSON object"),
        (binary({"time": "today"}, b"{}"), 'column at: found "today", wanted timestamp'),
        (structured({"time": "today"}, data={}), 'column at: found "today", wanted timestamp'),
    ],
)
def test_what_is_no_event_as_declared_is_an_error(message, error):
    assert error_of(CloudEvents("id string, at timestamp from time", data=Json("a int")), message).startswith(error)


def test_an_event_without_data_is_a_row_unless_a_column_of_data_must_be_there():
    sent = [structured({}), structured({}, data=None), structured({}, data={"a": 1})]
    decoded = decode(CloudEvents("id string", data=Json("a int")), *sent)
    assert decoded.columns.column("a").to_pylist() == [None, None, 1]
    assert error_of(CloudEvents("id string", data=Json("a int not null")), sent[0]) == (
        "column a: found nothing, wanted int not null"
    )


def test_headers_are_utf_8_as_they_are_and_the_last_of_a_name_counts():
    message = binary({"subject": "a%20é", "raw": "/w==", "flag": "true"}, b"\x00\xff", "application/octet-stream")
    message = Message(None, message.value, (("ce_subject", b"before"), *message.headers))
    declared = CloudEvents(
        "subject string, raw binary, flag boolean, content string from datacontenttype", data=Bytes("payload binary")
    )
    (row,) = decode(declared, message).columns.to_pylist()
    assert tuple(row.values()) == ("a%20é", b"\xff", True, "application/octet-stream", b"\x00\xff")
    wrong = Message(None, b"", (*message.headers, ("ce_subject", b"\xff")))
    assert error_of(declared, wrong) == "column subject: found \ufffd, which is not UTF-8, wanted string"


def test_data_of_any_format_in_either_mode():
    declared = CloudEvents("id string", data=Csv("a int, b string"))
    sent = [
        structured({"datacontenttype": "text/csv"}, data='1,"x, y"'),
        structured({"datacontenttype": "text/csv"}, data_base64=b64encode(b"2,z").decode()),
        binary({}, b"3,", "text/csv"),
    ]
    assert [(row["a"], row["b"]) for row in decode(declared, *sent).columns.to_pylist()] == [
        (1, "x, y"),
        (2, "z"),
        (3, None),
    ]


def test_numbers_of_data_are_kept_as_they_were_sent():
    value = b'{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"a":5.10,"a":12345678901234.56789}}'
    decoded = decode(CloudEvents("id string", data=Json("a string")), Message(None, value))
    assert decoded.columns.column("a").to_pylist() == ["12345678901234.56789"]


def test_cut_digits_and_missing_fields_are_told_of_good_events_alone():
    fine = "2024-05-01T10:00:00.123456789Z"
    declared = CloudEvents("at timestamp from time, tenant string", data=Json("a int, moment timestamp"))
    good = [
        structured({"time": fine}, data={"a": 1, "moment": fine}),
        binary({"time": fine, "region": "x"}, b'{"b": 1}'),
    ]
    bad = [structured({"time": fine, "tenant": "x"}, data={"a": "x"}), binary({"time": fine, "tenant": "y"}, b"5")]
    decoded = decode(declared, *good, *bad)
    assert decoded.cut == 3 and decoded.found == {"at", "a", "moment"}
    assert {"region", "time"} <= decoded.beside["tenant"]


def test_a_tombstone_is_no_event():
    message = binary({}, b"", "application/json")
    topic = Topic("t", value=CloudEvents("id string", data=Json("a int")))
    opened = Envelope(topic).open(batch_of([Message(b"k", None, message.headers)]))
    assert opened.dead.column("error").to_pylist() == ["no value (a tombstone)"]


def test_without_headers_at_all_every_event_is_in_its_value():
    value = structured({}, data={"a": 1}).value
    decoded = CloudEvents("id string", data=Json("a int")).decoder(Use()).decode(pa.array([value], pa.binary()))
    assert decoded.columns.to_pylist() == [{"id": "7", "a": 1}]
    nothing = pa.nulls(1, HEADERS)
    assert (
        CloudEvents("id string").decoder(Use()).decode(pa.array([value], pa.binary()), nothing).errors[0].as_py()
        is None
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CloudEvents("id serial"), "CloudEvents.columns: column 'id' has the unknown type"),
        (lambda: CloudEvents("at timestamp from _timestamp"), "columns: declare an attribute"),
        (lambda: CloudEvents("data string"), "columns: 'data' is no attribute; say data=Json"),
        (
            lambda: CloudEvents("orderId string"),
            "columns: column 'orderId': orderId is no attribute, whose names are a to z",
        ),
        (lambda: CloudEvents("x string from data.x"), "columns: column 'x': data.x is no attribute"),
        (lambda: CloudEvents("id string", data="a int"), "CloudEvents.data"),
        (lambda: CloudEvents("id string", data=Debezium("a int")), r"data: Debezium(…) deletes rows"),
        (lambda: CloudEvents("id string", data=Json("ID int")), "data: column 'ID' is declared of the attributes too"),
    ],
)
def test_an_illegal_event_is_refused_with_the_reason(make, said):
    with pytest.raises(SpecError) as caught:
        make()
    assert said in str(caught.value)
