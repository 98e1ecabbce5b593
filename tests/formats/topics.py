"""Declared topics of every kind, and what their records are held to be: rows or dead letters, as Python reads them."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet import Json, Topic

TOPICS = {
    "numbers": Topic("t", value=Json("a smallint, b int, c bigint, d float, e double, f boolean"), key="k bigint"),
    "decimals": Topic(
        "t",
        value=Json("a decimal(10,2), b decimal(38,10), c decimal(38,0), d decimal(38,38), e decimal(1,0), s string"),
        key="k decimal(20,4)",
    ),
    "texts": Topic("t", value=Json("s string, y binary, ts timestamp, d date, ti time, u uuid"), key="k string"),
    "names": Topic(
        "t",
        value=Json(
            'orderId bigint, ts timestamp strict from "@timestamp", id string from _id, user_id int from "user-id", '
            'name string from customer.name, zip string from customer.address."zip code", whole json from customer, '
            'at timestamp from _timestamp, trace string from _headers."trace-id", heads json from _headers, '
            "sent binary from _key"
        ),
        key=Json("tenant string, n int not null from inner.n"),
    ),
    "documents": Topic(
        "t",
        value=Json(
            "j json, l array<int>, ls array<string>, ld array<decimal(5,2)>, m map<string, double>, "
            'o struct<a: int not null, "b-c": array<struct<x: decimal(4,2), t: timestamp, u: uuid>>, '
            "m: map<string, json>>, "
            "n array<array<bigint>>, q array<time>, r array<uuid>"
        ),
        key="k json",
    ),
    "moments": Topic(
        "t",
        value=Json(
            "a timestamp, b timestamp(seconds), c timestamp(millis), d timestamp(micros), e timestamp(nanos), "
            "f timestamp(nanos) strict, g timestamp strict"
        ),
        key="k timestamp(millis)",
    ),
    "rows": Topic("t", value=Json("id bigint not null, s string, d decimal(10,2) from price.amount", rows="array")),
    "not null": Topic(
        "t",
        value=Json("a int not null, b decimal(18,6), s string not null, ts timestamp not null, y binary"),
        key="k timestamp not null",
    ),
    "deletions": Topic(
        "t",
        value=Json("a bigint, s string, d date, x double, y decimal(5,5)"),
        key="k decimal(38,10)",
        tombstones="delete",
    ),
}
TIMESTAMP = datetime.now(UTC).replace(microsecond=123_000)
"""Of every record; a topic's retention would delete an old one."""
