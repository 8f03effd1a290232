"""The report's section on visitors."""

from kvatlas.reporting import ranking, recall_tables
from kvatlas.reporting.study_rows import groups


def context(results, timings, study_config):
    """Collect what the section shows; None when the study was not run."""
    tables = main_tables(results, study_config)
    return {"tables": tables} if tables else None


def short_tables(results):
    """Build the rankings."""
    return [(each.heading, each.table) for each in ranking.rankings(results, "visitor")]


def main_tables(results, study_config):
    """Build one table per model and question mode."""
    return [recall_tables.summary(results, {}, "visitor", *group) for group in groups(results, "visitor")]
