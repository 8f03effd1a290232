"""Whether a repeat of a run agrees with it: two reports, paired prompt by prompt, arm by arm and claim by claim.

`report` reads one report's data, `settings` lists what differs in how two were made, `arms` pairs their trials and tests
whether an arm differs by more than chance allows, `comparison` puts all of it together.
"""
