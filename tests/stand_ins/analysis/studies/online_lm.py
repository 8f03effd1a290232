"""Stand-in: a study without a section."""


def aggregate(trials, options):
    return {}
