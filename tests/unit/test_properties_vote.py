"""The stored forms of votes and events: what is read is what was written, and the hash is of what was meant."""

import json
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs import process_slice
from ratchet.ledger.history import hash_of
from ratchet.ledger.work import SinkVote, SliceToken
from ratchet.protocol.votes import vote_from_json, vote_to_json
from ratchet.sinks.checksum import MODULUS

writers = st.lists(st.integers(1, 2**63 - 1), max_size=5).map(tuple)
votes = st.builds(SinkVote, writers, st.integers(0, 2**63 - 1), st.integers(0, MODULUS - 1))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
details = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(0, 1e15) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
numbers = st.integers(1, 2**31 - 1)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
events = st.fixed_dictionaries(
    {"pipeline": texts, "txid": numbers, "revision": numbers, "seq": numbers, "at": moments, "who": texts,
     "move": texts, "epoch": numbers, "detail": details, "previous_hash": texts}
)  # fmt: skip


@settings(max_examples=200)
@given(votes)
def test_a_vote_comes_back_from_json_with_every_bit_of_its_checksum(vote):
    assert vote_from_json(json.loads(json.dumps(vote_to_json(vote)))) == vote
    # A reader whose numbers are doubles gets the checksum too.
    as_doubles = json.loads(json.dumps(vote_to_json(vote)), parse_int=lambda digits: int(float(digits)))
    assert vote_from_json(as_doubles).checksum == vote.checksum


@settings(max_examples=200)
@given(events, st.integers(-14, 14), st.randoms())
def test_an_events_hash_knows_no_order_of_fields_no_zone_and_no_white_space(event, hours, rng):
    def shuffled(value):
        if isinstance(value, dict):
            names = list(value)
            rng.shuffle(names)
            return {name: shuffled(value[name]) for name in names}
        return value

    zoned = event["at"].astimezone(timezone(timedelta(hours=hours)))
    stored = {**event, "at": zoned, "detail": json.loads(json.dumps(shuffled(event["detail"]), indent=3))}
    assert hash_of(shuffled(stored)) == hash_of(event)


@settings(max_examples=200)
@given(events, events, st.sampled_from(["pipeline", "txid", "revision", "seq", "at", "who", "move", "epoch", "detail"]))
def test_an_event_that_differs_in_one_field_has_another_hash(event, other, field):
    assume(
        json.dumps(event[field], default=str, sort_keys=True) != json.dumps(other[field], default=str, sort_keys=True)
    )
    assert hash_of({**event, field: other[field]}) != hash_of(event)


@settings(max_examples=200)
@given(st.text("az09_", min_size=1, max_size=31), *[st.integers(0, 2**63 - 1)] * 6)
def test_a_token_comes_back_from_the_arguments_of_a_submitted_driver(
    pipeline, txid, epoch, number, attempt, revision, nonce
):
    token = SliceToken(pipeline, txid, epoch, number, attempt, revision, nonce)
    assert process_slice.token_of([token.pipeline, *map(str, token.numbers)]) == token
