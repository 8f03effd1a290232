"""Words that compare arms, which pages may use in claims alone."""

COMPARISONS = (
    r"beat(s|en)?|best|better|wors[et]|worse|higher|lower|highest|lowest|wins?|los(es|t)|outperform\w*|superior|"
    r"consistently|exceeds?|dominates|robust(ly)?|fails?|(more|less|fewer) \w+ than|closer|faster|slower"
)
