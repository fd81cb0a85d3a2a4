"""The trainer: runs one member of a gang, from the plan that the operator wrote."""
