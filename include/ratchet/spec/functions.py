"""Functions of Spark's SQL that have no place in a statement over records, and what to do instead.

tests/spark/test_sql.py holds the lists against Spark's own registry.
"""

from __future__ import annotations

AGGREGATES = frozenset(
    """
    any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value grouping
    grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean measure median min min_by mode percentile percentile_approx percentile_cont
    percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    schema_of_variant_agg skewness std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp
    variance
    """.split()
)
"""Functions over several rows, but `any` and `some`, which are words of predicates too: those Spark itself refuses."""
WINDOWS = frozenset("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number".split())
GENERATORS = frozenset(
    """
    collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer sql_keywords stack
    variant_explode variant_explode_outer
    """.split()
)
"""Functions that make several rows of one."""
CLOCKS = frozenset("curdate current_date current_time current_timestamp localtime localtimestamp now".split())
CHANCE = frozenset("rand randn random randstr shuffle uniform uuid".split())
PLACES = frozenset(
    "input_file_block_length input_file_block_start input_file_name monotonically_increasing_id "
    "spark_partition_id".split()
)
SESSIONS = frozenset(
    "current_catalog current_database current_path current_schema current_user session_user user version".split()
)
OUTSIDE = frozenset("java_method reflect try_reflect".split())
TIME_WINDOWS = frozenset("session_window window window_time".split())

FEWEST = {"unix_timestamp": 1, "aes_encrypt": 5}
"""So many arguments make a function's result follow from them: no time of its own, no random vector."""
NOW = frozenset({"now", "today", "tomorrow", "yesterday"})
"""What Spark takes for a time of its own in a text that it casts to a date or a timestamp."""
MAKES_TIME = frozenset(
    """
    cast date timestamp timestamp_ltz timestamp_ntz to_date to_timestamp to_timestamp_ltz to_timestamp_ntz try_cast
    try_to_date try_to_timestamp
    """.split()
)
"""What casts a text to a date or a timestamp."""

SUMS_BELONG_TO_SINKS = (
    "a statement makes rows of each record by itself; sums and counts are an Accumulate's, last rows an Upsert's"
)
CLOCK = "another try would give another time; _txn_time is the transaction's, the same in every try and replay"
NO_PARENTHESES = CLOCKS | SESSIONS
"""Those of them that may be called without parentheses, where no column has their name."""

_INSTEAD = (
    (AGGREGATES, SUMS_BELONG_TO_SINKS),
    (WINDOWS, "a statement makes rows of each record by itself, and which ones are beside it is nobody's promise"),
    (CLOCKS, CLOCK),
    (
        CHANCE,
        "another try would give another value; make it of the record, as md5(concat_ws('-', _partition, _offset)) does",
    ),
    (PLACES, "another try may read elsewhere; _partition, _offset and _n say where a row comes from"),
    (SESSIONS, "it depends on Spark's session; write the value into the statement"),
    (OUTSIDE, "Spark cannot know what it depends on; use a function over DataFrames"),
    (TIME_WINDOWS, "it groups rows, which is a sink's work; date_trunc and time_bucket give the beginning of a period"),
)


def instead_of(name: str) -> str | None:
    """Why a function, by its name in lower case, has no place in a statement, and what has; None where it has one."""
    return next((why for names, why in _INSTEAD if name in names), None)
