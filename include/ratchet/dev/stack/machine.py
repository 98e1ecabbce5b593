"""What the embedded servers take of this machine: how many cores, and how Java is to use them."""

import os

CORES = max(2, os.cpu_count() or 2)
"""Spark's task slots, and so how many slices can be worked on at once; of two, one can wait for the other's answer."""
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options for minutes of work on few cores: compiling better would take half of them, and pay only later."""
LASTING = ("-XX:+UseParallelGC",)
"""Java's options for hours of work; on few cores G1 costs a tenth of the throughput."""
