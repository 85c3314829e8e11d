"""A model version on its way to devices: a canary share first, whose figures decide."""
