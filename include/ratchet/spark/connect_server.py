"""The driver of the embedded Spark Connect server, which spark-submit starts.

Spark's own class for such a server isolates sessions, so that each has Python workers of its own, and no setting
changes that. Here all sessions share them.
"""

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession


def main() -> None:
    """Listen as soon as a session is up, and serve until the JVM ends."""
    session = SparkSession.builder.getOrCreate()
    java = session._jvm
    assert java is not None
    java.org.apache.spark.sql.connect.service.SparkConnectService.start(session._jsparkSession.sparkContext())
    # The Scala object has no static method for its server.
    service = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    try:
        service.server().awaitTermination()
    except Py4JNetworkError:
        # The JVM is gone, and this process is of no use without it.
        return


if __name__ == "__main__":
    main()
