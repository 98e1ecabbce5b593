"""Spark's own functions by their groups, as JSON, of a session of this process."""

import json

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
analysis = spark._jvm.org.apache.spark.sql.catalyst.analysis
groups: dict[str, list[str]] = {}
random: list[str] = []
for name, registry in (("functions", analysis.FunctionRegistry), ("tables", analysis.TableFunctionRegistry)):
    builtin = registry.builtin()
    names = builtin.listFunction().iterator()
    while names.hasNext():
        found = names.next()
        info = builtin.lookupFunction(found).get()
        groups.setdefault(f"{name} {info.getGroup()}", []).append(info.getName())
        if "non-deterministic" in info.getNote():
            random.append(info.getName())
print(json.dumps({"groups": groups, "random": random}))
