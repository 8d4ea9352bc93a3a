"""Everything that runs on Spark. No other part of the harness imports pyspark."""
