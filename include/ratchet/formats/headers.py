"""The headers of records, list<struct<key string, value binary>>; null where a record has none."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def last(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    """The value of the last header of a name, of each record; null where there is none, or where that is null."""
    each = pc.list_flatten(headers)
    at = np.flatnonzero(pc.equal(each.field("key"), name).to_numpy(zero_copy_only=False))
    if not len(at):
        return pa.nulls(len(headers), pa.binary())
    of = pc.list_parent_indices(headers).to_numpy()
    places = np.full(len(headers), -1, np.int64)
    np.maximum.at(places, of[at], at)
    return each.field("value").take(pa.array(places, mask=places < 0))
