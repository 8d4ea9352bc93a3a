"""Make a venv's own ``spark-submit`` find its Spark and its Python without being activated, quiet and quick.

PySpark from a package asks the first ``python3`` on PATH where Spark lies, and has every task run by that one too:
from a venv that is not activated both are wrong. Most of the time in which a JVM with Spark starts goes into reading
classes: an archive of them is made by running a query. ``make setup`` runs this module once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from harness.processes.spark_cluster import CLASS_ARCHIVE, LOG4J2, QUICK_JVM, WITHOUT_CONF
from harness.spark.session import QUIET

FIND_SPARK_HOME = """\
#!/usr/bin/env bash
# Written by "make setup": the Spark and the Python of this venv, whatever python3 on PATH may be.
bin="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export SPARK_HOME="${SPARK_HOME:-$(cd "$bin"/@SPARK_HOME@ && pwd)}"
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$bin/python}"
# Without --master everything stays on this machine, and no address needs looking up.
case " $* " in *" --master"*) ;; *) export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}" ;; esac
"""
QUERY = """\
from harness.spark.session import session


def same(batches):
    yield from batches


with session("classes") as spark:
    spark.range(1000).selectExpr("id", "id % 7 as key", "timestamp_millis(id) as at").write.parquet("events")
    rows = spark.readStream.schema("id long, key long, at timestamp").parquet("events")
    rows.createOrReplaceTempView("rows")
    arrow = rows.mapInArrow(same, rows.schema).writeStream.format("parquet").option("path", "sink")
    counts = spark.sql("select key, count(*) from rows group by key").writeStream.format("noop").outputMode("complete")
    for number, sink in enumerate((arrow, counts)):
        query = sink.option("checkpointLocation", f"checkpoint-{number}").start()
        query.processAllAvailable()
        query.stop()
    spark.createDataFrame([("a", 1)], "a string, key long").join(spark.read.parquet("sink"), "key").collect()
"""
"""The archive has the classes that this uses: streams, SQL, Parquet files, and functions in Python."""


def install(programs: Path, spark_home: Path) -> None:
    """Write the files that Spark's scripts read: ``find-spark-home`` in ``programs``, settings below ``spark_home``."""
    place = shlex.quote(os.path.relpath(spark_home, programs))
    (programs / "find-spark-home").write_text(FIND_SPARK_HOME.replace("@SPARK_HOME@", place))
    conf = spark_home / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in QUIET.items()))
    shutil.copyfile(LOG4J2, conf / "log4j2.properties")


def archive_classes(programs: Path) -> bool:
    """Write ``CLASS_ARCHIVE`` by the ``spark-submit`` of ``programs``. Return False where that fails."""
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=sys.prefix) as folder:
        query, archive = Path(folder, "query.py"), Path(folder, CLASS_ARCHIVE.name)
        query.write_text(QUERY)
        options = f'{QUICK_JVM} "-XX:ArchiveClassesAtExit={archive}"'
        command = [str(programs / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={options}", str(query)]
        done = subprocess.run(command, cwd=folder, env=os.environ | WITHOUT_CONF, capture_output=True, check=False)
        if done.returncode == 0 and archive.exists():
            archive.replace(CLASS_ARCHIVE)
    return CLASS_ARCHIVE.exists()


if __name__ == "__main__":
    install(Path(sys.prefix, "bin"), Path(_find_spark_home()))
    if not archive_classes(Path(sys.prefix, "bin")):
        print("Spark starts without an archive of its classes, which takes twice the time.", file=sys.stderr)
