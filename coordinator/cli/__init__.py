"""The operators' commands, imported by the program `manyhands`, which maps errors to exit codes."""
