"""The source files of a release's demo, which are copied into the release and never imported."""
