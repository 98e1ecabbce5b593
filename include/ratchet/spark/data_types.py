"""Declared types as Spark's: JSON, UUIDs and times of day are strings there."""

from __future__ import annotations

from pyspark.sql import types as spark

from ratchet.spec.types import (
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
)


def data_type(kind: Type) -> spark.DataType:
    """The type that a declared column has in a DataFrame."""
    match kind:
        case String() | Json() | Uuid() | Time():
            return spark.StringType()
        case Boolean():
            return spark.BooleanType()
        case Integer(bits):
            return {16: spark.ShortType, 32: spark.IntegerType, 64: spark.LongType}[bits]()
        case Floating(bits):
            return spark.FloatType() if bits == 32 else spark.DoubleType()
        case Decimal(precision, scale):
            return spark.DecimalType(precision, scale)
        case Date():
            return spark.DateType()
        case Timestamp():
            return spark.TimestampType()
        case Binary():
            return spark.BinaryType()
        case Array(element):
            return spark.ArrayType(data_type(element))
        case Map(value):
            return spark.MapType(spark.StringType(), data_type(value))
        case Struct(members):
            return spark.StructType([spark.StructField(m.name, data_type(m.type)) for m in members])
