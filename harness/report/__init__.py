"""Building blocks of a report: rows on disk, medians, tables, plots, pages. They know no experiment."""
