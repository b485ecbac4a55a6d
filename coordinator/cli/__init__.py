"""The operator's commands, imported by the `manyhands` program, which maps errors to exit codes."""
