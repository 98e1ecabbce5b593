"""How the cost grows: the measured curves, a module each."""

from benchmarks.curves import history, idle, keys, messages, partitions, past, revised, slices, transactions, waiting
from benchmarks.curves.curve import Curve

CURVES: dict[str, Curve] = {
    "slices": slices.CURVE,
    "partitions": partitions.CURVE,
    "transactions": transactions.CURVE,
    "messages": messages.CURVE,
    "history": history.CURVE,
    "revised": revised.CURVE,
    "waiting": waiting.CURVE,
    "idle": idle.CURVE,
    **keys.CURVES,
    "past": past.CURVE,
    "past_rows": past.ROWS,
}
"""By the name that `make curves CURVES=…` knows, in the order in which they are measured."""
