"""jsonb's canonical text: ours is what PostgreSQL writes, of every document, and what it refuses we refuse before."""

import os
import random
import re
import time

import psycopg
import pytest

from ratchet.spec.types import JSON
from ratchet.values.jsonb import canonical
from ratchet.values.unfit import Unfit
from tests.formats.literals import literal

SEED = int(os.environ.get("RATCHET_DECODE_SEED") or random.SystemRandom().randrange(10**6))
VECTORS = {
    '{"b":1,"aa":2,"a":3,"a":4}': '{"a": 4, "b": 1, "aa": 2}',
    '{"\\u00e9":1,"zz":2,"z":1}': '{"z": 1, "zz": 2, "é": 1}',
    "[1,[],{}, {\"a\":[ ]}]": '[1, [], {}, {"a": []}]',
    "1.50": "1.50", "1e2": "100", "1E-3": "0.001", "0.50e1": "5.0", "-0": "0", "-0.00": "0.00", "0e5": "0",
    "123456789012345678901234567890.5": "123456789012345678901234567890.5",
    '"\\u001f\\u007f\\/\\b\\f\\n\\"\\\\"': '"\\u001f\x7f/\\b\\f\\n\\"\\\\"',
    '"\\ud83d\\ude00\u2028"': '"\U0001f600\u2028"',
}  # fmt: skip
REFUSED = [
    "1e131072", "1e-16384", "0e-16384", "5e2000000000", "1e99999999999", "9" * 131_073, "0." + "1" * 16_384,
    '"\\u0000"', '{"\\u0000": 1}', '{"a": ["\\u0000"]}',
    '{"a": 1e131072, "a": 1}', '{"a": [{"b": 1e99999999}], "a": 1}', '{"a": "\\u0000", "a": 1}',
    '[{"a": {"a": "\\ud800"}, "a": 1}]',
]  # fmt: skip
AT_THE_LIMIT = ["1e131071", "1e-16383", "0e-16383", "0e999999999", "9" * 131_072, "0." + "1" * 16_383]


@pytest.fixture
def conn(ledger_url):
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        yield conn


def of_postgresql(conn: psycopg.Connection, text: str) -> str | None:
    """What PostgreSQL makes of a text; None where it refuses it."""
    try:
        return conn.execute("select %s::jsonb::text", (text,)).fetchone()[0]
    except psycopg.DataError:
        return None


def ours(text: str) -> str | None:
    try:
        return canonical(text)
    except Unfit:
        return None


def test_the_vectors(conn):
    for text, expected in VECTORS.items():
        assert ours(text) == expected == of_postgresql(conn, text), text


def test_what_jsonb_refuses_is_refused_and_what_it_just_holds_is_held(conn):
    for text in REFUSED:
        assert ours(text) is None and of_postgresql(conn, text) is None, text[:40]
    for text in AT_THE_LIMIT:
        assert ours(text) == of_postgresql(conn, text) is not None, text[:40]


def test_thousands_of_generated_documents_have_postgresqls_text(conn):
    rng = random.Random(SEED)
    sent = 0
    while sent < 6_000:
        text = literal(JSON, rng)
        if re.search("[\ud800-\udfff\x00]", text):
            continue
        sent += 1
        assert ours(text) == of_postgresql(conn, text), (f"RATCHET_DECODE_SEED={SEED}", text)
        found = ours(text)
        assert found is None or ours(found) == found


def test_doubled_members_within_each_other_cost_no_more_than_others():
    def seconds(doubled: str) -> float:
        text = f'{{"a":{doubled}' * 300 + "[" + ",".join("1" * 5_000) + "]" + "}" * 300
        began = time.monotonic()
        assert canonical(text).count("1") == 5_000
        return time.monotonic() - began

    # Each time written out it would be 300 times as long.
    assert min(seconds('0,"a":') for _ in range(3)) < 30 * min(seconds("") for _ in range(3))
