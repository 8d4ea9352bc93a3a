"""Make a venv's own ``spark-submit`` find its Spark and its Python without being activated, and keep it quiet.

PySpark from a package asks the first ``python3`` on PATH where Spark lies, and has every task run by that one too:
from a venv that is not activated both are wrong. ``make setup`` runs this module once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from harness.processes.spark_cluster import LOG4J2
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


def install(programs: Path, spark_home: Path) -> None:
    """Write the files that Spark's scripts read: ``find-spark-home`` in ``programs``, settings below ``spark_home``."""
    place = shlex.quote(os.path.relpath(spark_home, programs))
    (programs / "find-spark-home").write_text(FIND_SPARK_HOME.replace("@SPARK_HOME@", place))
    conf = spark_home / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in QUIET.items()))
    shutil.copyfile(LOG4J2, conf / "log4j2.properties")


if __name__ == "__main__":
    install(Path(sys.prefix, "bin"), Path(_find_spark_home()))
